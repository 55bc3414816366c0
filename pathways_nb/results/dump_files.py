"""Files that XLA's compilers dump (``xla_dump_to``): which of them are scheduled programs, and what lies beside them.

A dump has many files for each program. Those of a program begin alike: GPUs
``module_0001.jit_step.sm_9.0a_gpu_after_optimizations.txt``, CPUs ``….cpu_after_optimizations.txt``, TPUs
``….cl_1234.after_optimizations_after_buffer_assignment.txt``, each with a buffer assignment, live ranges and a report
of memory under the same beginning. Which chip it was is in ``….gpu_target_config.pbtxt`` or ``….target_arguments.txt``.
"""

from __future__ import annotations

import errno
import gzip
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pathways_datasets
from pathways_nb.cost.hardware import tables as tables_of_chips
from pathways_nb.cost.hardware.chips import chip
from pathways_nb.errors import UsageError
from pathways_nb.util.words import counted

_SCHEDULED = re.compile(r"^(?P<stem>.*?)after_optimizations(?P<assigned>_after_buffer_assignment)?\.txt(?P<zip>\.gz)?$")
_MODULE = re.compile(r"^(module_\d+\..+?)\.(?:sm_|gfx|cpu_|cl_\d|after_)")
_PARTS = {"buffers": "-buffer-assignment.txt", "memory": "-memory-usage-report.txt", "live": "-live-range.txt"}
_TPUS = {"JELLYFISH": "tpu_v2", "DRAGONFISH": "tpu_v3", "PUFFERFISH": "tpu_v4", "VIPERFISH": "tpu_v5p",
         "VIPERFISH lite": "tpu_v5e", "GHOSTLITE": "tpu_v6e", "6acc60406": "tpu_v7"}  # fmt: skip
"""Chips by the names that libtpu 0.0.42 has for them, with their variant."""
_ENDINGS = (".txt", ".hlo", ".gz", ".pb", ".html", ".dot", ".mlir")
HOW = "XLA_FLAGS='--xla_dump_to=FOLDER --xla_dump_hlo_as_text' dumps it, and compiled.as_text() returns it"
"""How to get a scheduled program as text."""


@dataclass(frozen=True)
class DumpedModule:
    """One program of a dump.

    Args:
        path: of the scheduled program.
        name: such as ``"module_0001.jit_step"``; of a file that was renamed its own name.
        beside: paths of the assignment of buffers, the report of memory and the live ranges, as far as they are there.
    """

    path: Path
    name: str
    beside: Mapping[str, Path]

    @property
    def kind(self) -> str:
        """``"GPU"``, ``"TPU"`` or ``"CPU"``, as far as the file's name says which compiler wrote it; else empty."""
        kinds = {"_gpu_after": "GPU", ".cpu_after": "CPU", ".cl_": "TPU"}
        return next((kind for part, kind in kinds.items() if part in self.path.name), "")

    @property
    def text(self) -> str:
        """The scheduled program.

        Raises:
            UsageError: the file is something else.
        """
        return scheduled_text(self.path)

    @property
    def texts(self) -> dict[str, str]:
        """What lies beside it, by the names of ``open_launch``'s arguments."""
        return {name: read_text(path) for name, path in self.beside.items()}

    @property
    def chip_name(self) -> str | None:
        """The name of the chip that it was compiled for; None if no file says it."""
        return _chip_beside(self.path.parent, self.name)


def is_dump(path: Path) -> bool:
    """Return whether a path is that of a dump or of a program's text, and not of a saved run.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if path.is_dir() or path.suffix in _ENDINGS:
        return True
    with path.open("rb") as file:
        return file.read(9) == b"HloModule"


def modules_in(folder: Path) -> list[DumpedModule]:
    """Return the scheduled programs of a dump, each once, in the order of their names.

    Raises:
        UsageError: there are none; what is there instead is named.
    """
    found: dict[str, DumpedModule] = {}
    for path in sorted(folder.iterdir()):
        said = _SCHEDULED.match(path.name)
        # A TPU's text after the assignment of buffers also has what was moved into its vector memory by then.
        if said and path.is_file() and (said["assigned"] or said["stem"] not in found):
            found[said["stem"]] = module_of(path)
    if found:
        return list(found.values())
    where = f"load({str(folder)!r}): this folder"
    names = [path.name for path in folder.iterdir()]
    if not names:
        raise UsageError(f"{where} is empty; a dump of XLA has a text of each scheduled program: {HOW}.")
    if protos := [name for name in names if name.endswith((".hlo.pb", ".pb"))]:
        raise UsageError(f"{where} has programs as protos only, such as {protos[0]}; text is read: {HOW}.")
    if pages := [name for name in names if name.endswith((".html", ".dot"))]:
        raise UsageError(f"{where} has drawings of programs only, such as {pages[0]}; text is read: {HOW}.")
    if early := [name for name in names if "before_optimizations" in name]:
        raise UsageError(
            f"{where} has programs from before optimizations only, such as {early[0]}, which have no schedule yet; the "
            f"text after optimizations is read: let the compiler end, {HOW}."
        )
    raise UsageError(f"{where} is no dump of XLA: none of its {counted(len(names), 'file')} ends in "
                     f"after_optimizations.txt; {HOW}.")  # fmt: skip


def module_of(path: Path) -> DumpedModule:
    """Return the program of a file, with what lies beside it."""
    said = _SCHEDULED.match(path.name)
    if said is None:
        return DumpedModule(path, path.name.removesuffix(".gz").removesuffix(".txt"), {})
    begin = path.with_name(f"{said['stem']}after_optimizations")
    paths = {
        name: one
        for name, ending in _PARTS.items()
        for one in (Path(f"{begin}{ending}"), Path(f"{begin}{ending}.gz"))
        if one.is_file()
    }
    named = _MODULE.match(path.name)
    return DumpedModule(path, named[1] if named else said["stem"].rstrip("._"), paths)


def read_text(path: Path) -> str:
    """Return a text, which may be compressed.

    Raises:
        UsageError: it is compressed, and damaged.
    """
    data = path.read_bytes()
    try:
        plain = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (EOFError, OSError, zlib.error) as error:
        raise UsageError(f"load({str(path)!r}): this compressed file is damaged ({error}); copy it again.") from None
    return plain.decode("utf-8-sig", errors="replace")


def scheduled_text(path: Path) -> str:
    """Return a scheduled program.

    Raises:
        UsageError: the file is no compiled program, or it has no schedule.
    """
    text, where = read_text(path), f"load({str(path)!r})"
    head = text[:4096].lstrip()
    if head[:200].lower().startswith(("<!doctype", "<html")):
        raise UsageError(f"{where}: this is a drawing of a program as HTML; its text is read: {HOW}.")
    if "\x00" in head or "�" in head[:200]:
        raise UsageError(f"{where}: this is no text, but a proto or another binary file; text is read: {HOW}.")
    title = next((line for line in head.splitlines() if line.startswith("HloModule ")), None)
    if title is None:
        what = head.splitlines()[0][:60] if head else "nothing"
        mlir = " It is a lowered program: compile it first." if "module @" in head else ""
        raise UsageError(f"{where}: a compiled program begins with 'HloModule', this file with {what!r}.{mlir} {HOW}.")
    if "is_scheduled=true" not in text[: text.find("\n", text.find("HloModule "))]:
        raise UsageError(
            f"{where}: this program has no schedule (its first line does not say is_scheduled=true), as before "
            f"optimizations; the text after optimizations is read: {HOW}."
        )
    entries = [found.end() for found in re.finditer(r"^ENTRY ", text, re.MULTILINE)]
    if entries and not re.search(r"^\}", text[entries[-1] :], re.MULTILINE):
        raise UsageError(f"{where}: this text ends in the middle of the program; dump or copy it again, whole.")
    return text


def _chip_beside(folder: Path, module: str) -> str | None:
    """Return the chip that the files of a module name; None if none does."""
    for path in sorted(folder.glob(f"{module}*.gpu_target_config.pbtxt")):
        return _gpu(path.read_text(errors="replace"))
    for path in sorted(folder.glob(f"{module}*.target_arguments.txt")):
        said = path.read_text(errors="replace")
        if version := re.search(r"TPU_VERSION_(\w+)", said):
            variant = re.search(r'variant: "(\w+)"', said)
            return _TPUS.get(" ".join(filter(None, (version[1], variant and variant[1]))))
    return None


def _gpu(said: str) -> str | None:
    """Return the GPU whose name a description has; of those with equal names the one with the nearest memory."""
    name = re.search(r'(?:device_description_str|name): "([^"]*)"', said)
    memory = re.search(r"device_memory_size: (\d+)", said)
    words = re.findall(r"\w+", name[1].upper()) if name else []
    # What is on a card for a slot has other rates and no NVLink.
    if not memory or "PCIE" in words:
        return None
    tables = pathways_datasets.compilers()["gpu"]
    near = [
        (abs(tables[known]["device_memory_size"] - int(memory[1])), name)
        for name in tables_of_chips.names("chips")
        if (known := chip(name).compiler or "") in tables and known.split("_")[0].upper() in words
    ]
    return min(near)[1] if near else None
