"""Compiled texts that come with the package: they answer for some steps where no compiler is installed.

A record is what the compiler wrote, kept under the fingerprint of the step (``step_fingerprint``), with the lines of
the source that it was recorded from (``recorded_lines``). Prices, memory and tables are made from it as from a text
that was compiled just now. ``make records`` writes all records anew.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import jax

import pathways_datasets
from pathways_nb.adopt.recorded_lines import Position, lines_by_key, moved_lines, portable, portable_names, with_lines
from pathways_nb.adopt.step_fingerprint import COMPARED, EXACT, counted_in, exact_of, fingerprint_of
from pathways_nb.adopt.taken_step import TakenStep
from pathways_nb.compilers.compiling import CompiledText
from pathways_nb.compilers.targets import CompilerTarget
from pathways_nb.program.compiled_blocks import CompiledBlocks

_TEXTS = tuple(one.name for one in fields(CompiledText) if one.type == "str")
"""Fields of a ``CompiledText`` that are text."""
_KERNELS_FOLDER = re.compile(r"(?<=\\00)/[\w./+-]*/")
"""A folder of this machine, as compiled kernels name it inside a text."""
_folder: Path | None = None
"""Where records are written; None while nothing is recorded."""


@contextlib.contextmanager
def recording(folder: Path) -> Iterator[None]:
    """Write a record of every adopted step that is compiled meanwhile.

    Args:
        folder: that the records are written into; made if missing.
    """
    global _folder
    folder.mkdir(parents=True, exist_ok=True)
    before, _folder = _folder, folder
    try:
        yield
    finally:
        _folder = before


def is_recording() -> bool:
    """Return whether steps are recorded."""
    return _folder is not None


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """A step as it was compiled elsewhere.

    Args:
        compiled: its texts, with lines of the source as it is now.
        compiler: name and version, and the version of JAX.
        check: of the bytes of the record.
        compared: what is the same, in words.
    """

    compiled: CompiledBlocks
    compiler: str
    check: int
    compared: str

    @property
    def note(self) -> str:
        """What a reader has to know."""
        return (
            f"from a recorded text of {self.compiler}, as the compiler is not installed here (of an equal step: same "
            f"{self.compared})"
        )


def find(taken: TakenStep, target: CompilerTarget, options: Mapping[str, Any]) -> RecordedStep | None:
    """Return the record of a step; None if there is none.

    Args:
        taken: the step.
        target: its devices.
        options: of the compiler.
    """
    counted = list(counted_in(taken.jaxpr))
    packed = pathways_datasets.recorded_step(fingerprint_of(taken, target, options, counted))
    if packed is None:
        return None
    found = json.loads(gzip.decompress(packed))
    # Another version of a library may write the same step otherwise.
    here = _libraries()
    is_exact = all(here.get(name, known) == known for name, known in found["written_by"].items())
    if is_exact and found["exact"] != exact_of(taken):
        return None
    lines = {
        key: [None if one is None else (found["files"][one[0]], one[1]) for one in positions]
        for key, positions in found["lines"].items()
    }
    moved = moved_lines(lines, lines_by_key(counted))
    compiled = _compiled(found, target.devices, moved)
    return RecordedStep(
        compiled, f"{compiled.texts[-1].compiler} and JAX {found['jax']}", zlib.crc32(packed),
        EXACT if is_exact else COMPARED,
    )  # fmt: skip


def _libraries() -> dict[str, str]:
    """Return the versions of the libraries in use that decide how a step's operations are written."""
    known = {name: sys.modules.get(name) for name in ("jax", "equinox", "flax", "optax")}
    return {name: str(getattr(module, "__version__", "")) for name, module in known.items() if module is not None}


def unpacked(packed: bytes, devices: int) -> CompiledBlocks:
    """Return the texts of a record, with the lines that it was recorded with.

    Args:
        packed: the record.
        devices: that it is for.
    """
    return _compiled(json.loads(gzip.decompress(packed)), devices, {})


def _compiled(found: Any, devices: int, moved: Mapping[Position, Position]) -> CompiledBlocks:
    """Return the texts of a record.

    Args:
        found: its content.
        devices: that it is for.
        moved: where lines are now.
    """
    places = tuple(found["places"][:devices])
    texts = tuple(_compiled_text(one, moved, places) for one in found["texts"])
    return CompiledBlocks(texts, tuple(found["depths"]), found["blocks"], tuple(found["results"]))


def _compiled_text(
    said: Mapping[str, str], moved: Mapping[Position, Position], places: tuple[Mapping[str, Any], ...]
) -> CompiledText:
    fields_said: dict[str, Any] = {name: with_lines(said[name], moved) for name in _TEXTS if name in said}
    return CompiledText(**fields_said, places=places)


def keep(
    taken: TakenStep, target: CompilerTarget, options: Mapping[str, Any], compiled: CompiledBlocks, chip: str
) -> None:
    """Write the record of a step, if steps are recorded.

    Args:
        taken: the step.
        target: its devices.
        options: of the compiler.
        compiled: what the compiler made of it.
        chip: its name.
    """
    if _folder is None:
        return
    counted = list(counted_in(taken.jaxpr))
    names = portable_names([one.text for one in compiled.texts], counted)
    files = list(dict.fromkeys(names.values()))
    numbers = {name: number for number, name in enumerate(files)}
    lines = {
        key: [None if at is None else (numbers[names[at[0]]], at[1]) for at in positions]
        for key, positions in lines_by_key(counted).items()
    }
    said = {
        "jax": jax.__version__, "written_by": _libraries(), "exact": exact_of(taken), "depths": compiled.depths,
        "blocks": compiled.blocks, "results": compiled.results,
        "texts": [
            {name: _KERNELS_FOLDER.sub("/", portable(getattr(one, name), names)) for name in _TEXTS}
            for one in compiled.texts
        ],
        "places": compiled.texts[-1].places, "files": files, "lines": lines,
    }  # fmt: skip
    mesh = (f"{axis}{size}" for axis, size in taken.mesh.shape_tuple)
    where = "-".join(_plain(part) for part in (str(target.devices), chip, *mesh))
    name = f"{_plain(taken.name)}.{where}.{fingerprint_of(taken, target, options, counted)}.json.gz"
    (_folder / name).write_bytes(gzip.compress(json.dumps(said).encode(), compresslevel=9, mtime=0))


def recorded_of(name: str) -> Sequence[str]:
    """Return what texts of a step are recorded for, such as ``"64-gpu_h100_sxm-data16-model4"``.

    Args:
        name: of the step.
    """
    titles = (title.split(".") for title in pathways_datasets.recorded_steps())
    return sorted({where for own, where, _ in titles if own == _plain(name)})


def _plain(text: str) -> str:
    """Return a text as a part of a file's name."""
    return re.sub(r"\W+", "_", text)
