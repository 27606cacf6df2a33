"""Every capsule module must initialise its own weights."""

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
def test_a_module_without_initialisation_is_an_error_when_the_model_is_built(case: Case) -> None:
    class ModelWithForgetful(case.family.translation):
        def post_init(self) -> None:
            self.forgetful = Forgetful()
            super().post_init()

    with pytest.raises(
        NotImplementedError, match="Forgetful must define init_capsule_weights, to fill its parameters"
    ):
        ModelWithForgetful(case.config())
