"""What a capsule module owes to the models that it is a part of."""

import pytest
import torch
from family_cases import FAMILIES, Case
from torch import nn

from hf_capsule_mt.modeling.capsules.linear_maps import CapsuleModule


class Forgetful(CapsuleModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2))


@pytest.mark.parametrize("case", [Case(family, family.chosen[0]) for family in FAMILIES], ids=str)
def test_a_module_that_does_not_say_how_it_starts_is_an_error_when_the_model_is_built(case: Case) -> None:
    class WithIt(case.family.translation):
        def post_init(self) -> None:
            self.forgetful = Forgetful()
            super().post_init()

    with pytest.raises(NotImplementedError, match="Forgetful must define how its own parameters start"):
        WithIt(case.config())
