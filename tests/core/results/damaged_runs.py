"""Damages saved runs at random: each either is refused in the project's own words, or works in all that a run offers.

    python -m tests.core.results.damaged_runs --count 2500 [--seed N]

Bytes of the file, values of its description, and types, lengths and numbers of its columns are damaged, one case from
one seed. What loads is then asked for everything: tables, exports, analyses, comparisons, pictures.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import random
import re
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import pathways_nb as pw
from pathways_nb.results.chrome_trace import from_chrome
from pathways_nb.timing.waits import WHY
from pathways_nb.trace.record import COLUMNS, STORED
from pathways_widgets.drawing.views import Moment
from pathways_widgets.graph.graph_view import GraphView
from pathways_widgets.memory.memory_view import CategoryView, MemoryView
from pathways_widgets.timeline.critical_view import CriticalTimeline
from pathways_widgets.timeline.op_view import OpTimeline
from pathways_widgets.timeline.timeline_view import Timeline

SAMPLES = [Path(__file__).with_name(name) for name in ("saved_real.run", "saved_simulated.run")]
"""Runs as version 1 saved them: two islands, tenants, memory, exact stamps, declared times; real and simulated."""
FOREIGN = re.compile(r"NoneType|object is not|unpack|subscript|index out of|not supported between|positional argument")
"""In Python's own errors, and in none of the project's."""
_DRAWN = 10
"""Of so many cases that load, one is drawn as a picture, which takes longest."""
NASTY: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 3, 9, 255, 2**31, 2**53 + 1, 2**63, 10**400, -(10**18), 0.5, -1.0, 1e308, -1e308),
    *(float("nan"), float("inf"), "", "x", "compute", "0", "-1", "9" * 500, "\ud800", "\0", "<&>", "é\n"),
    *([], {}, [[]], [None], [-1], [0, 0], [[0, 0, "DCN"]], {"0": None}, {"x": []}, [[[[[[]]]]]]),
)
"""What values of the description are replaced by."""


def parts_of(path: Path) -> dict[str, np.ndarray]:
    """All columns of a sound file."""
    with np.load(path) as archive:
        return dict(archive)


def damage(source: Path, target: Path, chance: random.Random) -> str:
    """Write a damaged copy; returns what was done to it."""
    kind = chance.choices((_bytes, _description, _columns), (1, 4, 2))[0]
    return kind(source, target, chance)


def _bytes(source: Path, target: Path, chance: random.Random) -> str:
    data = bytearray(source.read_bytes())
    for _ in range(chance.choice((1, 1, 3))):
        at, length = chance.randrange(len(data)), chance.choice((1, 2, 40))
        new = chance.choice((b"", bytes(length), chance.randbytes(length), b"\xff" * length))
        data[at : at + chance.choice((0, length))] = new
    target.write_bytes(data if chance.random() < 0.8 else data[: chance.randrange(len(data))])
    return "bytes"


def _description(source: Path, target: Path, chance: random.Random) -> str:
    parts = parts_of(source)
    meta = json.loads(parts["meta"].tobytes())
    meta["about"]["taken_as_placed"] = [3, 160]  # which the samples lack
    done = ", ".join(_change(meta, chance) for _ in range(chance.choice((1, 1, 1, 2, 4))))
    text = json.dumps(meta).encode()
    if chance.random() < 0.05:
        at = chance.randrange(len(text))
        text = text[:at] + chance.choice((b"[" * 100_000, b"9" * 5000, b"\xff", b"}")) + text[at:]
    write(target, parts | {"meta": np.frombuffer(text, np.uint8)})
    return f"description: {done}"


def _change(meta: Any, chance: random.Random) -> str:
    """Change one value somewhere in it, in every second case in a program's graph."""
    path, inner = [], meta
    if chance.random() < 0.5 and isinstance(meta.get("programs"), list):
        path, inner = ["programs"], meta["programs"]
    while True:
        if not isinstance(inner, (dict, list)) or not inner:  # what a change before has put there
            return "nothing"
        key = chance.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
        path.append(str(key))
        if not isinstance(inner[key], (dict, list)) or not inner[key] or chance.random() < 0.15:
            break
        inner = inner[key]
    how = chance.randrange(8)
    if how == 0:
        del inner[key]
    elif how == 1 and isinstance(inner, list):
        inner.insert(chance.randrange(len(inner) + 1), inner[key])
    elif how == 2 and isinstance(inner, list):
        chance.shuffle(inner)
    elif how == 3 and isinstance(inner[key], (int, float)):
        inner[key] += chance.choice((-1, 1, 1000, 0.5))
    else:
        inner[key] = copy.deepcopy(chance.choice(NASTY))
    return ".".join(path)


def with_causes(parts: dict[str, np.ndarray], chance: random.Random) -> dict[str, np.ndarray]:
    """Return the parts of an older file with causes as newer ones have them: any event may be released by any other."""
    count = len(parts["label"])
    by = [chance.randrange(count) if chance.random() < 0.3 else -1 for _ in range(count)]
    found = {
        "why": [chance.randrange(len(WHY)) if at >= 0 or chance.random() < 0.5 else -1 for at in by],
        "released_label": [-1 if at < 0 else parts["label"][at] for at in by],
        "released_run": [-1 if at < 0 else parts["run"][at] for at in by],
    }
    return parts | {name: np.array(values, STORED[name]) for name, values in found.items()}


def _columns(source: Path, target: Path, chance: random.Random) -> str:
    parts = with_causes(parts_of(source), chance)
    name = chance.choice((*STORED, "meta"))
    column = parts[name].copy()
    how = chance.choice(("drop", "dtype", "shape", "cut", "longer", "value", "value", "values", "objects", "all cut"))
    match how:
        case "drop":
            del parts[name]
        case "dtype":
            parts[name] = column.astype(chance.choice((np.int8, np.uint16, np.int64, ">f8", np.float32, "U3", bool)))
        case "shape":
            parts[name] = column.reshape(chance.choice(((1, -1), (-1, 1))))
        case "cut":
            parts[name] = column[: chance.randrange(len(column))]
        case "longer":
            parts[name] = np.concatenate([column, column[: chance.randint(1, 5)]])
        case "value" | "values":
            where = slice(None) if how == "values" else chance.randrange(len(column))
            column[where] = _number(column.dtype, chance)
            parts[name] = column
        case "objects":
            parts[name] = np.array([{"x": 1}] * len(column), object)
        case "all cut":
            kept = chance.randrange(len(parts["label"]))
            parts |= {each: parts[each][:kept] for each in STORED}
    write(target, parts)
    return f"column {name}: {how}"


def _number(dtype: np.dtype, chance: random.Random) -> Any:
    if dtype.kind == "f":
        return chance.choice((np.nan, np.inf, -np.inf, 1e308, -1e308, 1e12, -1e12, 5e-324, 0.0, -1.0, 1.0))
    bounds = np.iinfo(dtype)
    return chance.choice((bounds.min, bounds.max, 0, 1, 2, 5, 40, bounds.max // 2))


def write(path: Path, parts: dict[str, np.ndarray]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, **parts)


def check(path: Path, sound: pw.Run, folder: Path, draw: bool) -> str:
    """Load the file and use what comes; returns the reason for which it was refused, or nothing.

    Raises:
        AssertionError: it was refused in words that explain nothing. Exception: something that a run offers failed.
    """
    try:
        run = pw.load(path)
    except pw.UsageError as error:
        text = str(error)
        beginning = f"load({str(path)!r}): this is not a run saved by run.save(path), or it is damaged: "
        assert text.startswith(beginning), text
        assert not FOREIGN.search(text), text
        assert len(text) < 1000, text
        return text.removeprefix(beginning)
    use(run, sound, folder, draw)
    return ""


def use(run: pw.Run, sound: pw.Run, folder: Path, draw: bool = True) -> None:
    """Ask a run for all that it offers without a browser."""
    assert len(list(run.events)) == len(run.events["start"])
    assert all(len(run.events[name]) == len(run.events) for name in COLUMNS)
    texts = [run, run.summary(), run.summary_line(), run.critical_path(), run.slack(), run.idle(), run.stamps, run.hbm]
    assert all(str(text) and repr(text) for text in texts)
    for name in sorted(set(run.events.of_kind("compute")["name"]))[:1]:
        str(run.what_if(node=name, faster=2))
    for name in ("events.csv", "events.json"):
        (run.to_csv if name.endswith("csv") else run.to_chrome)(folder / name)
    assert len(from_chrome(folder / "events.json")) == len(run.events)
    for pair in (pw.compare(run, sound), pw.compare(sound, run)):
        assert str(pair)
        assert len(pair.events) <= len(run.events) + len(sound.events)
        pair.to_csv(folder / "difference.csv")
    run.save(folder / "again.run")
    assert len(pw.load(folder / "again.run").events) == len(run.events)
    _look(run)
    if draw:
        run.savefig(folder / "all.svg", show=("graph", "timeline", "critical", "memory"))
        run.savefig(folder / "all.png", show=("graph", "timeline"))
        with redirect_stdout(io.StringIO()):
            run.show()


def _look(run: pw.Run) -> None:
    """The columns of every view."""
    moment = Moment.of(run)
    GraphView().update(moment)
    for view in (Timeline, CriticalTimeline, OpTimeline, MemoryView, CategoryView):
        view(moment.islands).update(moment)


def one(number: int, folder: Path) -> str:
    """One case; returns why it was refused, or nothing if it loaded and worked."""
    chance = random.Random(number)
    source = SAMPLES[number % len(SAMPLES)]
    path, sound = folder / "damaged.run", pw.load(source)
    damage(source, path, chance)
    return check(path, sound, folder, number % _DRAWN == 0)


@dataclass
class Found:
    """What became of the cases: how many loaded and worked, why others were refused, and which failed raw."""

    worked: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        count = self.worked + self.refused.total() + len(self.failed)
        return (
            f"{count} damaged files: {self.refused.total()} refused, {self.worked} loaded and worked, "
            f"{len(self.failed)} failed raw"
        )


def run(count: int, first: int, folder: Path, say: Callable[[str], None] = lambda line: None) -> Found:
    """The cases of the seeds from ``first`` on."""
    found = Found()
    for number in range(first, first + count):
        try:
            reason = one(number, folder)
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            found.failed.append(
                f"seed {number}: {type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno})"
            )
            say(found.failed[-1])
            continue
        if reason:
            found.refused[re.sub(r"[\[(].*|'.*|\d.*| is .*", "", reason).strip()] += 1
        else:
            found.worked += 1
        if (number - first) % 500 == 499:
            say(str(found))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, print; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.core.results.damaged_runs", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--count", type=int, default=2500, help="how many; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the first; default: %(default)s")
    options = parser.parse_args(arguments)
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as folder:
        found = run(options.count, options.seed, Path(folder), print)
    print(found)
    for reason, times in found.refused.most_common(20):
        print(f"  {times:6} {reason}")
    return 1 if found.failed else 0


if __name__ == "__main__":
    sys.exit(main())
