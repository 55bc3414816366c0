"""Compile a lowered program for devices that are not here, in a process that is ended as soon as it has said enough.

A compiler schedules a program and assigns its memory first, and spends most of its time on code for the chip after
that. What the schedule and the memory are stands in files that XLA dumps; the last of those files marks their end, and
then the process is killed. So it is where a wait is interrupted. A compiler that crashes takes only its own process
with it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

from pathways_nb.compilers import child, disk_cache, packages
from pathways_nb.compilers.lowered import LoweredText
from pathways_nb.compilers.targets import CompilerTarget
from pathways_nb.errors import CancelledError, UsageError
from pathways_nb.util.progress import Progress, show_progress
from pathways_nb.util.words import counted

_POLL = 0.05
"""Seconds between two looks at what the compiler has written."""
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    # Without a GPU nothing can be tuned, and Triton's untuned tiles for products are poor; cuBLAS is what published
    # runs use.
    "cuda": {"xla_gpu_enable_triton_gemm": False},
    "tpu": {},
}
"""Compiler options that are set unless others are given, by platform."""
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # nothing is attached in the process that compiles
    "TPU_SKIP_MDS_QUERY": "1",  # there is no metadata server to ask
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",  # any kind: topologies are given by name
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # libtpu's lock is for processes that use the chips
    # Warnings are kept: they name layouts that the partitioner cannot reach but by a whole copy on every device.
    "TF_CPP_MIN_LOG_LEVEL": "1",
    "TPU_MIN_LOG_LEVEL": "1",
    "TPU_STDERR_LOG_LEVEL": "1",
    # What a program is compiled with is said in its request, which the cache knows; flags of this process, for devices
    # that it has, are not.
    "XLA_FLAGS": "",
    "LIBTPU_INIT_ARGS": "",
    "JAX_ENABLE_X64": "true",  # the program has types of its own, 64 bits as well
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # what comes from there is dumped nowhere
}
_TEXT = {"cuda": "*_gpu_after_optimizations.txt", "tpu": "*.after_optimizations_after_buffer_assignment.txt"}
"""The dumped file with the scheduled program, by platform."""
_REFUSED = "*.after_optimizations_before_buffer_assignment.txt"
"""The dumped file with the scheduled program where its memory could not be assigned."""
_REPORT, _LAST = "*memory-usage-report.txt", "*.debug_options"
"""Of the files about schedule and memory the last one; and the one that both compilers write before and after those."""
_KERNEL = re.compile(rb"ipykernel_\d+")
_FATAL = re.compile(r"^F\d{4} [^\]]*\] (.+)$", re.MULTILINE)
_WARNING = re.compile(r"^W\d{4} [^\]]*\] (.+)\n?", re.MULTILINE)
_KEPT_WARNING = "[SPMD] Involuntary full rematerialization"
_EXPORTED = re.compile(r'"jit\(call\)/call_exported/?')


_FIELDS = {**dict.fromkeys(("text", "memory", "buffers", "live", "compiler", "refused", "warned"), str), "places": list}
"""What an entry of the cache has; another one is of another form, and counts as none."""
_running: set[subprocess.Popen[bytes]] = set()
"""Compilers that run, of all threads."""


def end_all() -> None:
    """End every compiler of this process; who waits for one gets a ``CompilerError``."""
    for process in tuple(_running):
        process.kill()


_UNKNOWN_OPTION = re.compile(r"No such compile option: '(\w+)'")


class CompilerError(UsageError):
    """A compiler refused a program, or died; the text has its own words."""

    @property
    def unknown_option(self) -> str | None:
        """The name of the option that the compiler does not know, if that is why; else None."""
        found = _UNKNOWN_OPTION.search(str(self))
        return found[1] if found else None


@dataclass(frozen=True)
class CompiledText:
    """What a compiler wrote about a program.

    Args:
        text: the scheduled program, as ``compiled.as_text()`` has it.
        memory: the report of its largest buffers.
        buffers: which value is where in memory.
        live: how long each value lives.
        places: of each partition, its host, and of a TPU its coordinates, core and slice.
        compiler: name and version, such as ``"libtpu 0.0.42.1"``.
        refused: the compiler's words if the program does not fit the memory; ``text`` then is what the memory was to be
            assigned for, or empty.
        warned: the compiler's warnings of layouts that it reaches only by a whole copy on every device, one a line.
        seconds: that compiling took, 0 for what came from the cache.
    """

    text: str
    memory: str
    buffers: str
    live: str
    places: tuple[Mapping[str, Any], ...]
    compiler: str
    refused: str = ""
    warned: str = ""
    seconds: float = 0.0


def compile_for(
    lowered: LoweredText,
    target: CompilerTarget,
    options: Mapping[str, Any] | None = None,
    say: Callable[[str], object] = show_progress,
    is_wanted: Callable[[], bool] = lambda: True,
) -> CompiledText:
    """Return what a compiler makes of a program; what was compiled before comes from the disk.

    Args:
        lowered: the program, for the platform of the target.
        target: the devices; the program's mesh takes the first ones.
        options: of the compiler, by name, in addition to those that are set anyway; one of them with another value
            takes its place.
        say: is called with lines of progress.
        is_wanted: is asked while the compiler runs; when it is no longer true, the compiler is ended.

    Raises:
        CompilerError: the compiler does not take the program or an option, or died.
        CancelledError: it was ended because nobody wants the result any more.
        UsageError: the compiler is not installed.
    """
    where, compiler = packages.search_path(target.kind), packages.version_of(target.kind)
    request = {
        "platform": target.platform,
        "topology": dict(target.arguments),
        "devices": target.devices,
        "mesh": lowered.mesh,
        "donated": lowered.donated,
        "options": {**_OPTIONS[target.platform], **(options or {})},
        "compiler": compiler,
    }
    # A cell's file is named by its text, in a folder that is named by the kernel's process.
    key = disk_cache.key_of(request, _KERNEL.sub(rb"ipykernel_0", lowered.program))
    found = disk_cache.read(key)
    if found is not None and _FIELDS.keys() == found.keys() and all(isinstance(found[n], _FIELDS[n]) for n in found):
        text = _KERNEL.sub(f"ipykernel_{os.getpid()}".encode(), found["text"].encode()).decode()
        return CompiledText(**{**found, "text": text, "places": tuple(found["places"])})
    began = monotonic()
    with tempfile.TemporaryDirectory(prefix="pathways_nb-") as name:
        folder = Path(name)
        (folder / "program.bin").write_bytes(lowered.program)
        asked = {**request, "environment": _ENVIRONMENT, "search_path": str(where or "")}
        (folder / "request.json").write_text(json.dumps(asked))
        with Progress(say) as progress:
            ending = _run(folder, target, progress, is_wanted)
        made = _read(folder, target, ending, compiler)
    fields = {name: getattr(made, name) for name in _FIELDS}
    disk_cache.write(key, fields)
    return CompiledText(**fields, seconds=monotonic() - began)


class Ending(NamedTuple):
    """How a compiler ended.

    Args:
        told: the end of what it printed, after the signal that ended it, if it was one.
        is_whole: whether its files are whole; one that died may have written half of them.
        warned: its warnings that are kept, one a line.
    """

    told: str
    is_whole: bool
    warned: str = ""


def _run(folder: Path, target: CompilerTarget, progress: Progress, is_wanted: Callable[[], bool]) -> Ending:
    """Run the process until it has written its schedule, or has ended.

    Returns:
        How it ended.

    Raises:
        CancelledError: it is no longer wanted.
    """
    printed, begun = folder / "output.txt", dict[str, int]()
    with printed.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, child.__file__, str(folder)],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal reaches this process only, which ends the other one
        )
        _running.add(process)
        try:
            while process.poll() is None and not _is_scheduled(folder / "dump", _TEXT[target.platform], begun):
                if not is_wanted():
                    raise CancelledError(f"compiling for {counted(target.devices, 'device')} was ended.")
                progress.tell(f"compiling for {counted(target.devices, 'device')}")
                sleep(_POLL)
        finally:
            # SIGKILL: libtpu answers SIGTERM with a stack trace, and nothing here needs a clean end.
            process.kill()
            process.wait()
            _running.discard(process)
    text, code = printed.read_text(errors="replace"), process.returncode
    # What a failed check says stands before a long stack.
    fatal = _FATAL.search(text)
    told = fatal[1].strip() if fatal else _WARNING.sub("", text)[-2000:].strip()
    warned = "\n".join(dict.fromkeys(one for one in _WARNING.findall(text) if _KEPT_WARNING.lower() in one.lower()))
    if code == 0 or _is_scheduled(folder / "dump", _TEXT[target.platform], begun):
        return Ending(told, True, warned)
    # Nobody but the system ends a process without a word.
    why = "; perhaps the memory of this machine was used up" if code == -signal.SIGKILL and not told else ""
    return Ending(f"{signal.Signals(-code).name}{why}: {told}".rstrip(": ") if code < 0 else told, False)


def _is_scheduled(dump: Path, text: str, begun: dict[str, int]) -> bool:
    """Return whether the scheduled program and its memory are written.

    Args:
        dump: the folder.
        text: the pattern of the file with the program.
        begun: when the last file of each program was written first, by its name; filled in.
    """
    for last in dump.glob(_LAST):
        name, ended = last.name.removesuffix(_LAST[1:]), last.stat().st_mtime_ns
        made = [one.stat().st_mtime_ns for pattern in (text, _REPORT) for one in dump.glob(f"{name}{pattern}")]
        # It is written when the compiler begins, too, so its presence alone says nothing. Nor does the same time: times
        # of files go on in steps of milliseconds, within which a small program begins and is half written.
        if len(made) > 1 and (ended > max(made) or (ended == max(made) and ended > begun.get(name, ended))):
            return True
        begun.setdefault(name, ended)
    return False


def _read(folder: Path, target: CompilerTarget, ending: Ending, compiler: str) -> CompiledText:
    """Return what is in the folder.

    Raises:
        CompilerError: there is no schedule, for another reason than memory.
    """
    dump = folder / "dump"
    texts = {
        name: _only(dump, pattern)
        for name, pattern in {
            "text": _TEXT[target.platform],
            "memory": _REPORT,
            "buffers": "*-buffer-assignment.txt",
            "live": "*live-range.txt",
        }.items()
    }
    failed = folder / "error.json"
    refused = ""
    if failed.exists():
        error = json.loads(failed.read_text())
        if "RESOURCE_EXHAUSTED" not in error["text"]:
            raise CompilerError(f"{compiler} does not take this program ({error['stage']}): {error['text'].strip()}")
        refused, texts["text"] = error["text"].strip(), texts["text"] or _only(dump, _REFUSED)
    elif not texts["text"] or not ending.is_whole:
        raise CompilerError(
            f"{compiler} ended without a word about the program; the end of what it printed: {ending.told or 'nothing'}"
        )
    places = json.loads((folder / "devices.json").read_text())
    texts["text"] = _EXPORTED.sub('"', texts["text"])
    text, memory, buffers, live = (texts[name] for name in ("text", "memory", "buffers", "live"))
    return CompiledText(text, memory, buffers, live, tuple(places), compiler, refused, ending.warned)


def _only(folder: Path, pattern: str) -> str:
    """Return the text of the largest file of a name: small helper modules are dumped, too."""
    found = sorted(folder.glob(pattern), key=lambda path: path.stat().st_size)
    return found[-1].read_text() if found else ""
