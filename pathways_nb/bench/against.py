"""Short benches, repeated, and what became slower since another commit: ``bench --against FILE``.

A figure differs more from one process to the next than from one round to the next, so each short bench runs ``REPEATS``
times, each time in a process of its own. A figure counts as changed if no repetition of one side reaches those of the
other, if the medians are further apart than three times the median deviations of both sides (so that one outlier hides
nothing), and if that still holds after the bench has run as often again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from statistics import median
from typing import Any

from pathways_nb.bench import report
from pathways_nb.errors import UsageError
from pathways_nb.util import json_text
from pathways_nb.util.json_text import DamagedError, Field

REPEATS = 3
"""How often a short bench runs."""
_ONE = (
    "import sys; from pathways_nb.bench import report; print(report.as_json(report.measure(sys.argv[1], short=True)))"
)


def repeated(name: str, say: Callable[[str], object] = lambda line: None) -> dict[str, Any]:
    """Run a bench in short form ``REPEATS`` times and return one report.

    Args:
        name: of a bench that has a short form.
        say: called with a line before each repetition.

    Returns:
        As ``report.measure``: figures are medians, ``repeats`` has all values, and the detail is the last one's.

    Raises:
        UsageError: the bench has no short form, or a repetition failed.
    """
    if not report.has_short_form(name):
        known = [one for one in report.names() if report.has_short_form(one)]
        raise UsageError(f"bench {name} has no short form; these have: {', '.join(known)}.")
    runs = []
    for number in range(1, REPEATS + 1):
        say(f"bench {name}, short form: {number} of {REPEATS} …")
        done = subprocess.run([sys.executable, "-c", _ONE, name], capture_output=True, text=True)
        if done.returncode:
            raise UsageError(f"bench {name} failed:\n{done.stderr.strip()[-2000:]}")
        runs.append(json.loads(done.stdout))
    repeats = {figure: [run["figures"][figure] for run in runs] for figure in runs[0]["figures"]}
    figures = {figure: median(values) for figure, values in repeats.items()}
    return runs[-1] | {
        "figures": figures,
        "repeats": repeats,
        "units": {name: report.unit_of(name) for name in figures},
    }


@dataclass(frozen=True)
class Change:
    """A speed figure of one bench, before and now.

    Args:
        bench: its name.
        figure: the name of the figure.
        better: ``"higher"`` or ``"lower"``.
        before: its values in the file.
        now: its values here.
    """

    bench: str
    figure: str
    better: str
    before: Sequence[float]
    now: Sequence[float]

    @property
    def times(self) -> float:
        """How many times as slow it is now; below 1 it is faster."""
        found = median(self.now) / median(self.before)
        return found if self.better == "lower" else 1 / found

    @property
    def noise(self) -> float:
        """Three times the median deviations of both sides from their medians, relative to the smaller median."""
        sides = [(values, median(values)) for values in (self.before, self.now)]
        return 3 * sum(median(abs(v - m) for v in values) for values, m in sides) / min(m for _, m in sides)

    @property
    def is_real(self) -> bool:
        """Whether the values of before and now are apart by more than their noise."""
        low, high = sorted((self.before, self.now), key=median)
        return max(low) < min(high) and median(high) / median(low) - 1 > self.noise

    def __str__(self) -> str:
        how, factor = ("SLOWER", self.times) if self.times > 1 else ("faster", 1 / self.times)
        return (
            f"{how} by a factor of {factor:.2f} (noise {100 * self.noise:.0f} %): {self.figure} "
            f"{median(self.before):.4g} -> {median(self.now):.4g}, {self.better} is better"
        )


def compare(file: Path, names: Sequence[str], say: Callable[[str], object]) -> tuple[list[str], bool]:
    """Repeat the benches that a file holds and say what became slower, or faster, beyond its noise.

    Args:
        file: what ``bench NAME… --short --json`` printed.
        names: of those benches; none for all.
        say: called with lines of progress.

    Returns:
        Lines of text, and whether anything became slower or is not measured any more.

    Raises:
        UsageError: the file cannot be read, holds no short benches, or none of these names.
    """
    lines = list[str]()
    slower = False
    for before in _read(file, names):
        now = repeated(before["bench"], say)
        changes = changes_of(before, now["repeats"])
        if any(change.is_real for change in changes):
            say("apart: once more …")
            again = repeated(before["bench"], say)["repeats"]
            changes = changes_of(before, {name: [*now["repeats"][name], *again[name]] for name in again})
        real = [change for change in changes if change.is_real]
        gone = sorted(speeds(before["bench"], before["repeats"]).keys() - {change.figure for change in changes})
        slower |= any(change.times > 1 for change in real) or bool(gone)
        lines.append(f"{before['bench']}: {before.get('commit')} -> {now.get('commit')}, {_machines(before, now)}")
        lines += [f"  {change}" for change in real]
        lines += [f"  MISSING: {figure} is in the file and was not measured now" for figure in gone]
        lines.append(f"  {len(changes) - len(real)} of {len(changes)} figures unchanged within noise")
    return lines, slower


def _machines(before: dict[str, Any], now: dict[str, Any]) -> str:
    same = before.get("machine") == now["machine"]
    return "on the same machine" if same else f"on ANOTHER MACHINE or with other versions than {before.get('machine')}"


def speeds(name: str, figures: Iterable[str]) -> dict[str, str]:
    """Return, for those figures of a bench that its ``SPEED`` names, whether higher or lower is better."""
    patterns: dict[str, str] = report.module_of(name).SPEED
    return {one: better for one in figures for pattern, better in patterns.items() if fnmatch(one, pattern)}


def changes_of(before: dict[str, Any], now: dict[str, list[float]]) -> list[Change]:
    """Return the speed figures that both have."""
    return [
        Change(before["bench"], figure, better, before["repeats"][figure], now[figure])
        for figure, better in speeds(before["bench"], now).items()
        if figure in before["repeats"]
    ]


def _read(file: Path, names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the reports in a file.

    Raises:
        UsageError: see ``compare``.
    """
    how = "write one with: python -m pathways_nb bench NAME… --short --json > FILE"
    try:
        found = json_text.read(file)
    except (OSError, DamagedError) as error:
        raise UsageError(f"--against {file} cannot be read ({error}); {how}") from error
    reports = found if isinstance(found, list) else [found]
    try:
        for one in Field(reports).rows():
            one["bench"].text()
            for figure in one["repeats"].table():
                one["repeats"][figure].numbers(-1e300)
    except DamagedError as error:
        raise UsageError(f"--against {file} holds no short benches ({error}); {how}") from None
    chosen = [one for one in reports if one["bench"] in names or not names]
    if missing := set(names) - {one["bench"] for one in reports}:
        held = ", ".join(one["bench"] for one in reports)
        raise UsageError(f"--against {file} does not hold {', '.join(sorted(missing))}; it holds {held}.")
    return chosen
