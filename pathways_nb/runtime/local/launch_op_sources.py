"""The ops that a profiler saw within launches, joined with the operations of the program by name.

The profiler names an op as the compiled module of its launch does, and the text of this module says from which
operation of the program the op stems. Nothing else is compared: an op whose name is not in the text has no source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import jax

from pathways_nb.cost.hlo.hlo_sources import HloOp, ops_of
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.runtime.recorded.task_kinds import op_kind
from pathways_nb.trace.exact_stamps import Matched, Span
from pathways_nb.trace.launch_ops import Op, Ops
from pathways_nb.trace.record import Record
from pathways_nb.util.fallbacks import fall_back


def launch_ops(
    record: Record, match: Matched, devices: Sequence[Sequence[int]], launched: Mapping[int, CompiledPlan]
) -> Ops:
    """Return the ops of the launches that were matched.

    Args:
        record: of one block.
        match: its launches, and what the profiler saw of them.
        devices: for each island, the profiler's number of each device.
        launched: the plan of each run, by its serial.
    """
    return Ops.from_rows(_rows(record, match, devices, launched))


def _rows(
    record: Record, match: Matched, devices: Sequence[Sequence[int]], launched: Mapping[int, CompiledPlan]
) -> Iterator[Op]:
    events = record.events()
    runs, texts = events["run"], _Texts()
    for row in sorted(match.spans):
        label, run = events.labels[events.label[row]], int(runs[row])
        known = texts.of(_executable(launched.get(run), label.node))
        for span in match.spans[row]:
            device = devices[label.island].index(span.device)
            for name, start, end in _pieces(span, known):
                op = known.get(name) or HloOp("", op_kind(name))
                what = name, op.source, op.kind, label.name, label.program, label.node
                where = run, label.island, device, start - record.origin, end - record.origin
                yield Op(*what, *where, op.line, op.phase, op.work)


def _executable(plan: CompiledPlan | None, node: int) -> jax.stages.Compiled | None:
    """Return what was launched for a node; ``None`` if that is not known."""
    actions = plan.actions if plan is not None else ()
    return next((one.call for one in actions if one.step.kind == "launch" and one.step.node == node), None)


def _pieces(span: Span, known: Mapping[str, HloOp]) -> Iterator[tuple[str, float, float]]:
    """Yield the ops of a launch on one device, without loops, branches and calls whose own ops are there as well."""
    there = {op.name for op in span.ops}
    whole = {name for name in there if name in known and not there.isdisjoint(known[name].runs)}
    return (op for op in sorted(span.ops, key=lambda op: op.start) if op.name not in whole)


class _Texts:
    """The ops of executables by name, read once for each executable."""

    def __init__(self) -> None:
        self._read: dict[jax.stages.Compiled | None, dict[str, HloOp]] = {None: {}}

    def of(self, compiled: jax.stages.Compiled | None) -> dict[str, HloOp]:
        """Return the ops of an executable; none if its text cannot be read."""
        if compiled not in self._read:
            self._read[compiled] = _ops_of(compiled)
        return self._read[compiled]


def _ops_of(compiled: jax.stages.Compiled | None) -> dict[str, HloOp]:
    reason = None
    try:
        if compiled is not None and (text := compiled.as_text()):
            return ops_of(text)
    except Exception as error:  # of whatever class a backend without texts raises
        reason = error
    fall_back("The text of compiled programs cannot be read here", reason, "Ops in run.ops have no source.")
    return {}
