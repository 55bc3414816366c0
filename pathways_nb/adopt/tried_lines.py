"""What a constraint costs: a step compiled once more, without the constraint or with another spec for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from jax.sharding import PartitionSpec

from pathways_nb.adopt.constraints import Constraint
from pathways_nb.adopt.step_answers import StepAnswers
from pathways_nb.errors import size
from pathways_nb.program.specs import show
from pathways_nb.trace.metrics import duration, signed_duration
from pathways_nb.util.text_table import Printed, Table
from pathways_nb.util.words import first_ones

_OTHERS = 8
"""Lines that a table without rows names."""
S = TypeVar("S", bound=StepAnswers)


@dataclass(frozen=True, eq=False)
class TriedLine(Generic[S]):
    """A step, and what it is without a constraint, or with another spec for it.

    Args:
        line: as it was asked for.
        constraints: that stand there.
        spec: that they got; None where they were left out.
        before: the step.
        step: the changed step.
    """

    line: str
    constraints: tuple[Constraint, ...]
    spec: PartitionSpec | None
    before: S
    step: S

    @property
    def saved(self) -> float:
        """Exposed seconds of communication that the change saves in a step; negative if it costs some."""
        return self.before.collectives().exposed - self.step.collectives().exposed

    @property
    def seconds(self) -> float:
        """Seconds of a step that the change saves; negative if it costs some.

        Raises:
            OutOfMemoryError: one of the two steps does not fit.
        """
        return self.before.seconds - self.step.seconds

    @property
    def bytes(self) -> float:
        """Bytes of a device's memory that the change needs more; negative if it needs less."""
        return self.step.memory().peak - self.before.memory().peak

    @property
    def more(self) -> str:
        """``bytes`` in words: ``"+300 MB"``."""
        return f"{'−' if self.bytes < 0 else '+'}{size(abs(self.bytes))}"

    @property
    def change(self) -> str:
        """What was changed, in words."""
        were = " and ".join(dict.fromkeys(show(one.spec) for one in self.constraints))
        if self.spec is None:
            return f"without the constraint at {self.line} ({were})"
        return f"with {show(self.spec)} at {self.line} instead of {were}"

    def __repr__(self) -> str:
        both = self.before, self.step
        exposed, took = (
            f"{duration(before)} → {duration(after)}"
            for before, after in (
                [one.collectives().exposed for one in both],
                [one.band.seconds for one in both],
            )
        )
        fits = "" if self.step.memory().fits else " (it does not fit)"
        return f"{self.change}: exposed {exposed}, step {took}, memory {self.more}{fits}"


@dataclass(frozen=True, repr=False)
class TriedLines(Printed, Generic[S]):
    """Several changes of one step.

    Args:
        name: of the step.
        rows: those that save most exposed seconds first.
        failed: what could not be tried, and why.
        others: lines of the step's constraints, where none of them stands beside a flagged collective.
    """

    name: str
    rows: tuple[TriedLine[S], ...]
    failed: Sequence[str] = ()
    others: Sequence[str] = ()

    def _table(self) -> Table:
        cells = [
            (row.change, signed_duration(row.saved), signed_duration(row.before.band.seconds - row.step.band.seconds),
             row.more, "" if row.step.memory().fits else "does not fit")
            for row in self.rows
        ]  # fmt: skip
        cells += [(one, "", "", "", "") for one in self.failed]
        said = f"changes of {self.name}" if cells else f"{self.name}: no constraint stands beside a flagged collective"
        if self.others:
            said += f"; try_line tries any of those that there are, at {first_ones(self.others, _OTHERS)}"
        return Table(said, ("change", "exposed saved", "step saved", "memory", ""), cells)
