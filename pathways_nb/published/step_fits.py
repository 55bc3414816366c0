"""Fit the constants of a launch on published steps, and predict each step with constants that never saw it.

Only a few constants of each chip are fitted (``FITTED``); the others stay as the table has them. A step is predicted
with constants that were fitted without its source, where other sources show them, and without the step itself where
only its own family does. The *constant* that predictions are held against, one factor for each chip, stack and policy
of recomputation times the formula's FLOPs, is refitted likewise.

The seconds of a step change smoothly with each constant, so the logarithm of a step's seconds is taken as a sum of one
function of each constant, evaluated on a grid once. What comes out is then priced exactly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pathways_nb.cost.hardware.chips import chip
from pathways_nb.cost.launch.constants import LaunchConstants
from pathways_nb.published.prediction import CompiledRow, constants_of, priced
from pathways_nb.published.step_rows import PublishedStep

FITTED: Mapping[str, tuple[str, ...]] = {
    "gpu/torch": ("matmul", "attention", "node_bw", "link_bw"),
    "gpu/jax": ("matmul", "node_bw"),
    "tpu/jax": ("matmul", "slice_bw"),
}
"""The constants that are fitted, by kind of chip and stack. ``node_bw`` is that of replicas where only they use it."""
_FACTORS = np.exp(np.linspace(-1.2, 1.2, 25))
"""Values of a constant over its table's value."""
_PRIOR = 0.05
"""Weight of the distance from the table's value, so that what no step shows stays as it is."""


@dataclass
class FittedRows:
    """Published steps with their compiled programs.

    Args:
        rows: the settings, measured.
        steps: the compiled programs of each.
    """

    rows: Sequence[PublishedStep]
    steps: Sequence[Sequence[CompiledRow]]
    _curves: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)

    def names(self, number: int) -> tuple[str, ...]:
        """Return the names of the constants that are fitted for a step."""
        row = self.rows[number]
        return FITTED.get(f"{row.chip.split('_')[0]}/{row.stack}", ("matmul",))

    def group(self, number: int) -> tuple[str, str]:
        """Return what steps must share to be fitted together: the chip and the stack."""
        return self.rows[number].chip, self.rows[number].stack

    def curves(self, number: int) -> dict[str, np.ndarray]:
        """Return how the logarithm of a step's seconds changes with each of its constants, for each of the factors."""
        if number not in self._curves:
            row, steps, known = self.rows[number], self.steps[number], constants_of(self.rows[number])
            middle = math.log(priced(row, steps, known).ordered)
            made = {"": np.array([middle])}
            for name in self.names(number):
                values = [known.changed(**{name: min(_most(name), getattr(known, name) * f)}) for f in _FACTORS]
                made[name] = np.array([math.log(priced(row, steps, one).ordered) for one in values]) - middle
            self._curves[number] = made
        return self._curves[number]

    def fit(self, numbers: Sequence[int]) -> dict[str, float]:
        """Return the factor of each constant with the least mean absolute error over some steps of one group."""
        names = sorted({name for number in numbers for name in self.names(number)})
        chosen = dict.fromkeys(names, len(_FACTORS) // 2)
        measured = {number: math.log(self.rows[number].seconds or 1.0) for number in numbers}

        def error(name: str) -> np.ndarray:
            total = _PRIOR * np.abs(np.log(_FACTORS))
            for number in numbers:
                curves = self.curves(number)
                others = sum(curves[other][chosen[other]] for other in self.names(number) if other != name)
                own = curves.get(name, np.zeros(len(_FACTORS)))
                total = total + np.abs(curves[""][0] + others + own - measured[number]) / len(numbers)
            return total

        for _, name in itertools.product(range(4), names):  # each in turn, until none moves any more
            chosen[name] = int(np.argmin(error(name)))
        return {name: float(_FACTORS[at]) for name, at in chosen.items()}

    def without(self, *left_out: int) -> Callable[[int], LaunchConstants]:
        """Return a function of the constants of a step, fitted without some steps.

        Their whole sources are left out if other sources show the same chip and stack.
        """

        def known(number: int) -> LaunchConstants:
            same = [one for one in range(len(self.rows)) if self.group(one) == self.group(number)]
            sources = {self.rows[one].source for one in left_out}
            others = [one for one in same if self.rows[one].source not in sources]
            if len(others) < 2:
                others = [one for one in same if one not in left_out]
            factors = self.fit(others) if others else {}
            found = constants_of(self.rows[number])
            return found.changed(**{
                name: min(_most(name), getattr(found, name) * factor)
                for name, factor in factors.items() if name in self.names(number)
            })  # fmt: skip

        return known

    def constant(self, number: int, *left_out: int) -> float:
        """Return the seconds of a step by the formula's FLOPs times one fitted factor.

        Args:
            number: of the step.
            left_out: steps that the factor must not know.
        """
        row = self.rows[number]
        alike = [
            one for one, other in enumerate(self.rows)
            if (other.chip, other.stack, other.remat) == (row.chip, row.stack, row.remat) and one not in left_out
        ]  # fmt: skip
        factors = [math.log((self.rows[one].seconds or 1.0) / _formula(self.rows[one])) for one in alike]
        return _formula(row) * math.exp(sum(factors) / len(factors)) if factors else _formula(row)


def _formula(row: PublishedStep) -> float:
    """Return the seconds of the formula's FLOPs at the data sheet's rate, attention at half of it."""
    products, attention = row.flops
    return (products + 2 * attention) / row.devices / chip(row.chip).flops("bf16")


def _most(name: str) -> float:
    """Return the largest value of a constant: a share is at most 1."""
    return 1.0 if name in ("matmul", "attention", "hbm") else math.inf
