"""A check for a pull request: a step against a budget, and against what it was before.

Collectives are matched by function, scope and kind, so a line that was inserted above changes nothing.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pathways_nb.adopt.adopted_step import adopt
from pathways_nb.adopt.collective_line import CollectiveLine
from pathways_nb.adopt.step_answers import StepAnswers, read_step
from pathways_nb.errors import UsageError, size
from pathways_nb.trace.metrics import duration

_BYTES = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_UNITS = {"memory": _BYTES, "exposed": {"s": 1, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}}
"""What each part of a budget may be written in; alone, numbers are bytes and seconds."""
_MORE_MEMORY, _MORE_EXPOSED = 1.01, 1.02
"""How much more than before counts as more: the compiler packs equal programs a little differently."""
_LEAST = 1e-5
"""Exposed seconds of a step below which a difference says nothing."""


@dataclass(frozen=True)
class Budget:
    """What a step may take.

    Args:
        memory: bytes of a device; None for any.
        exposed: exposed seconds of communication in a step; None for any.
    """

    memory: float | None = None
    exposed: float | None = None

    @classmethod
    def of(cls, text: str) -> Budget:
        """Return the budget of a text such as ``"memory=95GB,exposed=0.05"``.

        Raises:
            UsageError: it has another word, or no number.
        """
        found: dict[str, float] = {}
        for part in filter(None, text.split(",")):
            name, _, said = (one.strip() for one in part.partition("="))
            units = _UNITS.get(name, {})
            unit = next((one for one in sorted(units, key=len, reverse=True) if said.endswith(one)), "")
            try:
                found[name] = float(said.removesuffix(unit)) * units.get(unit, 1)
            except ValueError:
                found["?"] = 0.0
        if set(found) - set(_UNITS):
            raise UsageError(f"--budget {text}: write memory=95GB, exposed=0.05 (seconds of a step), or both.")
        return cls(**found)


def problems(step: StepAnswers, budget: Budget, before: StepAnswers | None) -> list[str]:
    """Return what is more than agreed, a line each; none if all is well.

    Args:
        step: as it is now.
        budget: that it must keep.
        before: what it was; None without one.
    """
    memory, exposed = step.memory(), step.collectives().exposed
    found = []
    if not memory.fits:
        found.append(f"memory: the step does not fit on {step.where}: it {memory.shortage}")
    if budget.memory is not None and memory.peak > budget.memory:
        largest = memory.buffers[0] if memory.buffers else ""
        found.append(f"memory: {size(memory.peak)} is more than {size(budget.memory)}; the largest: {largest}")
    if budget.exposed is not None and exposed > budget.exposed:
        longest = step.collectives().rows[0]
        found.append(
            f"exposed: {duration(exposed)} is more than {duration(budget.exposed)}; the longest: {_where(longest)}, "
            f"{duration(longest.exposed)}"
        )
    if before is not None:
        found += _against(step, before, budget)
    return found


def _against(step: StepAnswers, before: StepAnswers, budget: Budget) -> list[str]:
    """Return what a step does that it did not do before.

    Raises:
        UsageError: it was somewhere else before.
    """
    if (step.chip_name, step.mesh) != (before.chip_name, before.mesh):
        raise UsageError(
            f"--against: this step is on {step.where}, and what was saved on {before.where}; save it anew."
        )
    old: dict[tuple[str, str, str], float] = {}
    for row in before.collectives().rows:
        old[_key(row)] = old.get(_key(row), 0.0) + row.count
    new: dict[tuple[str, str, str], list[CollectiveLine]] = {}
    for row in step.collectives().rows:
        new.setdefault(_key(row), []).append(row)
    found = []
    for key, rows in new.items():
        count, had = sum(row.count for row in rows), old.get(key, 0.0)
        if count > had + 0.5:
            was = f", {had:.0f} before" if had else ""
            found.append(f"new: {_where(rows[0])}: {count:.0f} times in a step{was}, {size(rows[0].bytes)} each")
    now, then = (one.memory().peak for one in (step, before))
    open_now, open_then = (one.collectives().exposed for one in (step, before))
    if budget.memory is None and now > _MORE_MEMORY * then:
        found.append(f"memory: {size(now)}, {size(then)} before")
    if budget.exposed is None and open_now > _MORE_EXPOSED * open_then + _LEAST:
        found.append(f"exposed: {duration(open_now)}, {duration(open_then)} before")
    return found


def _key(row: CollectiveLine) -> tuple[str, str, str]:
    return row.function, row.scope, row.kind


def _where(row: CollectiveLine) -> str:
    """Return a collective with where it comes from, in words."""
    inside = f" ({' in '.join(filter(None, (row.scope, row.function)))})" if row.scope or row.function else ""
    return f"{row.kind} at {row.line or 'no known line'}{inside}"


def adopt_from(target: str, chip: str, mesh: Mapping[str, int] | None, options: str | None) -> StepAnswers:
    """Return the step that a command line names.

    Args:
        target: ``"file.py::step"``: a jitted step whose arguments are ``step_args`` in the same file, a tuple or a
            function that returns one; or a function without parameters that returns the step and its arguments.
        chip: as in ``pw.adopt``.
        mesh: as in ``pw.adopt``.
        options: name of a preset of compiler options.

    Raises:
        UsageError: there is no such file or name, or nothing says the arguments.
    """
    path, _, name = target.partition("::")
    if not name or not Path(path).is_file():
        raise UsageError(f"adopt {target}: write FILE.py::NAME with a file that is there.")
    module = _imported(Path(path))
    step = getattr(module, name, None)
    if step is None:
        raise UsageError(f"adopt {target}: {path} has no {name}.")
    given: Any = getattr(module, f"{name}_args", None)
    if given is None and not hasattr(step, "lower") and callable(step) and not inspect.signature(step).parameters:
        step, *given = step()
    if given is None:
        raise UsageError(
            f"adopt {target}: nothing says the arguments. Add {name}_args to the file, a tuple of arrays or of shapes "
            f"with layouts, or a function that returns one; or name a function without parameters that returns the "
            f"step and its arguments."
        )
    return adopt(step, *(given() if callable(given) else given), chip=chip, mesh=mesh, options=options)


def _imported(path: Path) -> ModuleType:
    """Return a file as a module; what stands beside it can be imported by it."""
    sys.path.insert(0, str(path.parent.resolve()))
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[path.stem] = module
    found.loader.exec_module(module)
    return module


def sizes_in(text: str) -> dict[str, int]:
    """Return the devices along each axis in a text such as ``"data=16,model=8"``.

    Raises:
        UsageError: it is none.
    """
    try:
        return {name.strip(): int(said) for name, _, said in (part.partition("=") for part in text.split(","))}
    except ValueError:
        raise UsageError(f"mesh {text!r}: write the devices along each axis, such as data=16,model=8.") from None


def report(step: StepAnswers, found: Sequence[str]) -> str:
    """Return what the command prints: the step, its collectives, and what is more than agreed."""
    lines = [step.summary, repr(step.collectives())]
    return "\n".join([*lines, *(f"note: {one}" for one in step.notes), *(f"TOO MUCH {one}" for one in found)])


def saved(path: Path) -> StepAnswers:
    """Return the answers in a file.

    Raises:
        UsageError: there is no such file, or it is of another kind.
    """
    if not path.exists():
        raise UsageError(f"--against {path}: there is no such file. adopt --save writes one.")
    found = read_step(path) if path.is_file() else None
    if found is None:
        raise UsageError(f"--against {path}: this is no file that adopt --save wrote.")
    return found
