"""A launch that was opened as a run of one device, which stands for all: to be drawn, saved, and compared.

So what a compiler's schedule says has the pictures, files and comparisons of what was recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pathways_nb.cost.launch.opened_launch import OpenedLaunch
from pathways_nb.errors import size
from pathways_nb.results.run import Run
from pathways_nb.trace.memory_history import held_rows
from pathways_nb.trace.metrics import duration
from pathways_nb.trace.op_hiding import exposed_words
from pathways_nb.trace.record import Events, Record
from pathways_nb.trace.rows import Label, Row
from pathways_nb.util.words import first_ones

_CLIENT = "predicted"
_MODULES = 5
"""Programs of a dump that are named in the summary; ``about`` has all."""


def launched_run(
    opened: OpenedLaunch,
    name: str,
    chip: str,
    devices: int,
    modules: Sequence[tuple[str, float]] = (),
) -> Run:
    """Return an opened launch as a run.

    Args:
        opened: the launch.
        name: of the program.
        chip: name of the chip.
        devices: number of devices of the launch.
        modules: name and seconds of each program that was there, the longest first.
    """
    memory, said = opened.memory, summary_of(opened)
    about: dict[str, Any] = {
        "options": {"kind": "sim", "chip": chip, "devices": devices},
        "opened": {"summary": f"{devices} × {chip} · {said}", "basis": opened.basis, "notes": list(opened.notes)},
    }
    if memory is not None:
        about["hbm"] = [memory.available or 0]
        about["opened"]["buffers"] = [str(one) for one in memory.buffers]
    if len(modules) > 1:
        about["opened"]["modules"] = [[one, took] for one, took in modules]
        others = first_ones([f"{one} {duration(took)}" for one, took in modules], _MODULES)
        about["opened"]["summary"] += f" · {len(modules)} modules (module= chooses): {others}"
    run = run_of(opened, name, name, _CLIENT)
    run.about = about
    return run


def run_of(opened: OpenedLaunch, name: str, program: str, client: str) -> Run:
    """Return a run of one device with its one launch: the event, the memory, the operations.

    Args:
        opened: the launch.
        name: of the run.
        program: what was launched.
        client: who holds the memory, in pictures of memory by client.
    """
    launch = Label("compute", program, program, client, 0, island=0, devices=1, basis=opened.basis)
    rows = [Row(launch, 0.0, opened.seconds.ordered, 0, "simulated")]
    if opened.memory is not None and (levels := opened.memory.levels) is not None:
        rows += held_rows(levels.times, levels.bytes, levels.end, client)
    run = Run(name, (1,), Record.of(Events.from_rows(rows)), finished=True)
    run.ops = opened.placed(program, program, None, 0, 0, 0, 0.0)
    return run


def summary_of(opened: OpenedLaunch) -> str:
    """Return in one line: seconds with their band, exposed communication by line, memory, what is not known."""
    found, memory = opened.seconds, opened.memory
    parts = [
        f"predicted {duration(found.ordered)} in the compiler's order "
        f"(all hidden {duration(found.hidden)} … nothing hidden {duration(found.exposed)})"
    ]
    if opened.exposed:
        parts.append(exposed_words(opened.exposed))
    elif found.busy["network"]:
        parts.append("all communication hidden")
    if memory is not None:
        held = {"arguments": memory.arguments, "results": memory.results, "temporaries": memory.temporaries}
        parts.append(f"memory {size(memory.peak)} ({', '.join(f'{key} {size(n)}' for key, n in held.items() if n)})")
        if not memory.fits and memory.available is not None:
            parts.append(f"does not fit: the device has {size(memory.available)}")
    return " · ".join([*parts, *opened.notes])
