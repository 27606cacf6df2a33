"""How a time grows with a length: a line and a parabola by least squares, and which of their terms differ from 0.

Legend: `N` lengths, `K` coefficients.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hf_capsule_mt.evaluation.significance.distributions import student_t_quantile


@dataclass(frozen=True)
class GrowthFit:
    """`seconds = c_0 + c_1 length + …` with the standard error and the confidence interval of each coefficient."""

    coefficients: tuple[float, ...]
    standard_errors: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...]

    def seconds(self, length: float) -> float:
        """The fitted time at a length."""
        return sum(coefficient * length**power for power, coefficient in enumerate(self.coefficients))

    @property
    def top_sign(self) -> int:
        """The sign of the highest power's coefficient: 1 or -1, or 0 if its interval holds 0.

        For a parabola this is the F-test against the line: F is the square of the coefficient's t.
        """
        low, high = self.intervals[-1]
        return int(low > 0) - int(high < 0)


def fit_growth(lengths: Sequence[float], seconds: Sequence[float], degree: int, confidence: float = 0.95) -> GrowthFit:
    """The polynomial of a degree for N points with the smallest sum of squared *relative* errors.

    Errors are relative because a busy machine disturbs long measurements more than short ones. Standard errors come
    from the scatter of the points around the fit, intervals from Student's t with N - K degrees of freedom.
    """
    count, terms = len(lengths), degree + 1
    if len(set(lengths)) <= terms:
        raise ValueError(f"{len(set(lengths))} lengths: a polynomial of degree {degree} needs at least {terms + 1}")
    scale = float(max(lengths))  # powers of the plain lengths would be badly conditioned
    times = np.asarray(seconds, dtype=float)
    powers = (np.asarray(lengths, dtype=float) / scale)[:, None] ** np.arange(terms)  # [N, K]
    design = powers / times[:, None]
    inverse = np.linalg.inv(design.T @ design)
    coefficients = inverse @ design.sum(axis=0)  # for relative errors every target is 1
    variance = float(np.square(1.0 - design @ coefficients).sum()) / (count - terms)
    units = scale ** np.arange(terms)
    errors = np.sqrt(variance * np.diag(inverse)) / units
    coefficients = coefficients / units
    reach = student_t_quantile(confidence, count - terms) * errors
    intervals = tuple(zip(map(float, coefficients - reach), map(float, coefficients + reach), strict=True))
    return GrowthFit(tuple(map(float, coefficients)), tuple(map(float, errors)), intervals)


def describe_growth(line: GrowthFit, parabola: GrowthFit) -> str:
    """The bend of the parabola in words; without a clear bend, the slope of the line."""
    bend = {1: "bends up", -1: "bends down"}
    return bend.get(parabola.top_sign) or {1: "linear", -1: "falls", 0: "none seen"}[line.top_sign]
