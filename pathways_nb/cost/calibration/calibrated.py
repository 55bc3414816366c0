"""A calibration: the model of one machine, the error of each of its classes, and its file.

The file is a small JSON: the machine's description, and every parameter with its origin, as in ``hardware.json``. It
is checked when it is read, like any table; one of another machine is refused, with both described.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathways_nb.cost.calibration.fitted import Check
from pathways_nb.cost.efficiency import Efficiency
from pathways_nb.cost.hardware import tables
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hardware.host_costs import HostCosts
from pathways_nb.cost.hardware.networks import Network
from pathways_nb.cost.model import CostModel
from pathways_nb.errors import UsageError
from pathways_nb.util import json_text
from pathways_nb.util.json_forms import list_of, optional, row
from pathways_nb.util.json_text import DamagedError, Field

FORMAT, VERSION = "pathways_nb.calibration", 2
_PARTS = {"chip": Chip, "network": Network, "host": HostCosts, "efficiency": Efficiency}
_CHECKS = list_of(row(Check._make, Field.text, Field.whole, Field.number, optional(Field.number)))
HIGH = 0.25
"""Held-out error, above the noise, from which on a class is warned about."""


class OutdatedError(UsageError):
    """A calibration that does not hold on this machine: another machine's, or another version's.

    Args:
        why: the reason, as a clause.
        fix: what to do, as a sentence.
        quick: whether it was a short calibration.
    """

    def __init__(self, why: str, fix: str, quick: bool):
        super().__init__(f"{why}. {fix}")
        self.why, self.quick = why, quick


@dataclass(frozen=True, repr=False)
class Calibration:
    """The result of ``pw.calibrate``.

    Args:
        model: chip, network, host and efficiency, each number with its origin; for simulation.
        checks: for each class the noise of its measurements, and its error on sizes that the fit has not seen.
        machine: description of the machine: processor, cores, versions, islands and devices.
        quick: whether it was the short one.
    """

    model: CostModel
    checks: tuple[Check, ...]
    machine: Mapping[str, Any]
    quick: bool = False

    def save(self, path: str | Path) -> None:
        """Write the calibration to a JSON file, whose folder is made if it is missing."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "name": self.model.name,
            "quick": self.quick,
            "machine": dict(self.machine),
            **{part: tables.entries(getattr(self.model, part)) for part in _PARTS},
            "checks": _CHECKS.write(self.checks),
        }
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".part")  # an interrupt must not leave half a file
        fresh.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
        fresh.replace(path)

    def refuse_elsewhere(self, here: Mapping[str, Any], where: str) -> None:
        """Refuse the calibration on another machine.

        Args:
            here: description of this machine.
            where: name of the calibration, for the error.

        Raises:
            OutdatedError: what differs, on both.
        """
        # Of both descriptions: a field that only one of them has differs, too.
        differing = [name for name in {**here, **self.machine} if here.get(name) != self.machine.get(name)]
        if differing:
            there, this = (_described(machine, differing) for machine in (self.machine, here))
            raise OutdatedError(
                f"{where}: this calibration is of another machine ({there}); here it is {this}",
                "Measure this one: pw.calibrate().",
                self.quick,
            )

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return for each class the number of measurements, noise, and error on sizes that the fit has not seen."""
        return [
            (c.kind, str(c.samples), f"{c.noise:.0%}", "–" if c.error is None else f"{c.error:.0%}")
            for c in self.checks
        ]

    def remarks(self) -> list[str]:
        """Return how to read the rows, and which classes not to rely on."""
        # An error below the noise says nothing about the model.
        high = [c for c in self.checks if c.error is not None and c.error >= max(HIGH, c.noise)]
        named = ", ".join(f"{c.kind} ({c.error:.0%})" for c in high)
        warning = f"Warning: held-out errors of {HIGH:.0%} and more: {named}. What is simulated of these is as far off."
        return [_READING, warning] if high else [_READING]

    def __repr__(self) -> str:
        rows = [("class", "sizes", "noise", "held-out error"), *self.rows()]
        wide = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = ["  ".join([row[0].ljust(wide[0]), *map(str.rjust, row[1:], wide[1:])]) for row in rows]
        return "\n".join([f"<calibration {self.model.name}{', quick' if self.quick else ''}>", *lines, *self.remarks()])

    def _repr_html_(self) -> str:
        cells = "".join(f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in row)}</tr>" for row in self.rows())
        head = "<tr><th>class</th><th>sizes</th><th>noise</th><th>held-out error</th></tr>"
        remarks = "".join(f"<p>{html.escape(remark)}</p>" for remark in self.remarks())
        return f"<table><caption><b>{html.escape(self.model.name)}</b></caption>{head}{cells}</table>{remarks}"


_READING = "noise: distance of the quartiles of the repeats, over their median; an error below it means nothing."


def load(path: str | Path) -> Calibration:
    """Return a calibration read from a file. Nothing in the file is executed.

    Args:
        path: of the file.

    Raises:
        OutdatedError: another version.
        UsageError: no calibration, a damaged one, or a field that does not exist.
        FileNotFoundError: no such file.
    """
    where, content = str(path), _content(Path(path))
    try:
        # First: of another version, any other field may have another form.
        _refuse_version(where, content)
        name, machine = content["name"].text(), content["machine"].table()
        written = {part: content[part].table() for part in _PARTS}
        checks = _CHECKS.read(content["checks"])
        quick = "quick" in content.value and content["quick"].truth()
    except DamagedError as error:
        raise UsageError(f"{where}: {error}; {_NONE}") from None
    parts: dict[str, Any] = {
        part: tables.built(cls, f"{where}: {part}", name, written[part]) for part, cls in _PARTS.items()
    }
    return Calibration(CostModel(**parts, name=name), checks, machine, quick)


_NONE = "this is no calibration, or it is damaged. Measure again: pw.calibrate()."


def _refuse_version(where: str, content: Field) -> None:
    """Refuse a calibration of another version.

    Raises:
        OutdatedError: both versions.
        DamagedError: it is no calibration.
    """
    content["format"].one_of(FORMAT)
    found = content["version"].whole()
    if found != VERSION:
        raise OutdatedError(
            f"{where}: this calibration is of version {found}, of {'an older' if found < VERSION else 'a newer'} "
            f"pathways_nb; this one reads version {VERSION}",
            "Measure again: pw.calibrate().",
            content.get("quick").value is True,
        )


def _content(path: Path) -> Field:
    """Return the whole of a file.

    Raises:
        UsageError: the file is damaged.
    """
    try:
        return Field(json_text.read(path))
    except DamagedError as error:
        raise UsageError(f"{path}: {error}; {_NONE}") from None


def _described(machine: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return some of a machine's description in words."""
    return ", ".join(f"{name}: {machine.get(name)}" for name in names)
