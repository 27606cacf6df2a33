"""Random numbers of samples, which depend only on the seed, the step, the sentence and the sample.

How a step is split into batches and processes does not change them, and a resumed run draws the same ones. The samples
are then the same too, up to rounding, if the encoder has no dropout.

Legend: `n` samples of a sentence, `L` the most words of a sample.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def sentence_numbers(
    seed: int, step: int, source: Sequence[int], reference: Sequence[int], samples: int, length: int
) -> Tensor:
    """Uniform numbers of [0, 1), `[n, L]`, one for each word. The first words do not depend on `length`."""
    words = [len(source), *source, *reference]  # the first separates the two sides
    draws = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, step, *words])))
    return torch.from_numpy(draws.random((length, samples), dtype=np.float32)).T


def step_number(seed: int, step: int) -> float:
    """A uniform number of [0, 1) for a step."""
    return float(np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, step]))).random())
