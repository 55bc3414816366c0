"""A step in simulated time as a run: one launch, the operations and exchanges inside it, and the memory by category.

So the pictures, files and comparisons of recorded runs serve planned steps as well, and a planned step can be laid
beside a measured one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pathways_nb.parallel.fsdp.costs import TICK
from pathways_nb.parallel.fsdp.memory import MemoryCurve
from pathways_nb.parallel.fsdp.spans import Span, Stall, StepAbout
from pathways_nb.results.run import Run
from pathways_nb.trace.launch_ops import Op, OpKind, Ops
from pathways_nb.trace.record import Events, Record
from pathways_nb.trace.rows import Label, Row

_WAIT: OpKind = "wait"


def planned_run(
    about: StepAbout,
    spans: Sequence[Span],
    stalls: Sequence[Stall],
    memory: MemoryCurve,
    end: int,
    streams: int,
    note: str,
) -> Run:
    """Return a planned step as a run of one device, which stands for all of them.

    Args:
        about: what was planned.
        spans: of its streams.
        stalls: of its computation.
        memory: of the device over time.
        end: ticks of the step.
        streams: 3 if gathers and reductions have streams of their own.
        note: the line below the picture.
    """
    name = about.step
    launch = Label("compute", name, name, "planned", 0, island=0, devices=1)
    rows = [Row(launch, 0.0, end * TICK, 0, "simulated"), *_levels(memory, end)]
    ops = [*((span.name, span.name, _kind(span, streams), span.start, span.end) for span in spans),
           *((f"wait for {one.cause.name}", one.cause.name, _WAIT, one.start, one.end) for one in stalls)]  # fmt: skip
    run = Run(about.plan, (1,), Record.of(Events.from_rows(rows)), note=note, finished=True)
    run.about = {"options": {"kind": "sim", "chip": about.chip}}
    run.ops = Ops.from_rows(
        Op(what, source, kind, name, name, 0, 0, 0, 0, start * TICK, stop * TICK)
        for what, source, kind, start, stop in ops
    )
    return run


def _kind(span: Span, streams: int) -> OpKind:
    """Return the kind of an operation; on a stream of its own, a collective is known by what it does."""
    if span.stream == "compute":
        return "copy" if span.name in ("pack", "unpack") else "compute"
    return span.stream if streams == 3 else "collective"


def _levels(memory: MemoryCurve, end: int) -> Iterator[Row]:
    """Yield the memory of each category as long as it is the same."""
    times = [*memory.times.tolist(), end]
    for category, sizes in memory.bytes.items():
        since = 0
        for at, size in enumerate(sizes.tolist()):
            if at + 1 == len(sizes) or sizes[at + 1] != size:
                if size:
                    label = Label(
                        "memory", "held", client="planned", island=0, devices=1, bytes=size, category=category
                    )
                    yield Row(label, times[since] * TICK, times[at + 1] * TICK, 0, "simulated")
                since = at + 1
