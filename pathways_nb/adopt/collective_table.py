"""The collectives of a compiled step by line of the user's code: what moves, how often, how long, what is exposed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pathways_nb.adopt.collective_line import CollectiveLine
from pathways_nb.adopt.flags import flags_in
from pathways_nb.adopt.name_stacks import scope_of
from pathways_nb.adopt.scheduled_depths import ScheduledDepths
from pathways_nb.adopt.whole_copies import WholeCopy
from pathways_nb.cost.hlo.exchanges import HloExchange
from pathways_nb.cost.hlo.hlo_schedule import LaunchSchedule
from pathways_nb.cost.launch.launch_timing import Price
from pathways_nb.cost.launch.op_seconds import LaunchPlace, hosts_of
from pathways_nb.errors import size
from pathways_nb.plan.source_texts import SourceTexts
from pathways_nb.trace.launch_ops import Ops
from pathways_nb.trace.metrics import duration
from pathways_nb.trace.op_hiding import exposed_seconds
from pathways_nb.util.words import counted

BETWEEN_SLICES = "between slices, by the hosts' network"


@dataclass(frozen=True)
class Collectives:
    """The collectives of a step.

    Args:
        rows: one for each line and kind, those that are exposed longest first.
        texts: of their lines.
    """

    rows: tuple[CollectiveLine, ...]
    texts: SourceTexts = field(default_factory=SourceTexts, compare=False)

    @property
    def exposed(self) -> float:
        """Exposed seconds of all in a step."""
        return sum(row.exposed for row in self.rows)

    def _repr_html_(self) -> str:
        # Imported here: scripts that show nothing load no views.
        from pathways_nb.adopt.collective_html import html_of

        return html_of(self.rows, self.texts)

    def __repr__(self) -> str:
        if not self.rows:
            return "no collectives"
        table = [_HEADS, *map(_cells, self.rows)]
        widths = [max(len(row[at]) for row in table) for at in range(len(_HEADS))]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)
        return "\n".join(map(str.rstrip, lines))


_HEADS = ("line", "scope", "collective", "axes", "group", "bytes", "count", "seconds", "exposed", "flag")


def _group(row: CollectiveLine) -> str:
    return f"{row.devices} on {counted(row.hosts, 'host')}"


def _cells(row: CollectiveLine) -> tuple[str, ...]:
    return (
        row.line or "–", row.scope, row.kind, ", ".join(row.axes), _group(row), size(row.bytes), f"{row.count:.0f}",
        duration(row.seconds), duration(row.exposed), row.flag,
    )  # fmt: skip


def collectives_of(
    programs: ScheduledDepths,
    place: LaunchPlace,
    mesh: Mapping[str, int],
    warned: Sequence[Sequence[WholeCopy]] = (),
) -> Collectives:
    """Return the collectives of a step.

    Args:
        programs: that it was compiled as.
        place: its devices.
        mesh: devices along each axis.
        warned: copies of which the compiler warned in each program; none without.
    """
    copies = warned or [()] * len(programs.modules)
    each = [
        _lines(schedule, flags_in(module, found), ops, place, programs.price, mesh)
        for schedule, module, ops, found in zip(programs.schedules, programs.modules, programs.ops, copies, strict=True)
    ]
    rows = []
    for key, row in each[-1].items():
        count, bytes_, seconds, exposed = programs.sums([_total(one.get(key)) for one in each])
        # Below a billionth of its time it is rounding of the sums that it follows from.
        exposed = min(exposed, seconds) if exposed > 1e-9 * seconds else 0.0
        rows.append(replace(row, count=count, bytes=bytes_ / count, seconds=seconds, exposed=exposed))
    return Collectives(tuple(sorted(rows, key=lambda row: (-row.exposed, -row.seconds))))


def _total(row: CollectiveLine | None) -> tuple[float, float, float, float]:
    return (0.0, 0.0, 0.0, 0.0) if row is None else (row.count, row.count * row.bytes, row.seconds, row.exposed)


def _lines(
    schedule: LaunchSchedule,
    flags: Mapping[str, str],
    ops: Ops,
    place: LaunchPlace,
    price: Price,
    mesh: Mapping[str, int],
) -> dict[tuple[str, str, bool], CollectiveLine]:
    """Return the collectives of one compiled program, by line, kind, and whether they pass between slices."""
    shares = exposed_shares(ops)
    found: dict[tuple[str, str, bool], CollectiveLine] = {}
    for action, times in schedule.runs():
        exchange, between = action.exchange, ""
        if exchange is None or not times:
            continue
        if action.queue == "dcn":
            exchange, between = place.located(exchange), BETWEEN_SLICES
        took = times * price(action)
        hosts = hosts_of(exchange, place)
        flag = flags.get(action.name, "") or between or ("blocking" if action.role == "run" else "")
        one = CollectiveLine(
            action.line, action.function, scope_of(action.source), exchange.kind, axes_of_groups(exchange, mesh),
            exchange.size, hosts, exchange.bytes, times, took, shares.get(action.name, 1.0) * took, flag,
        )  # fmt: skip
        key = one.line, one.kind, bool(between)
        found[key] = _joined(found[key], one, mesh) if key in found else one
    return found


def _joined(one: CollectiveLine, other: CollectiveLine, mesh: Mapping[str, int]) -> CollectiveLine:
    """Return two rows of the same line and kind as one."""
    count = one.count + other.count
    # Blocks differ in their number alone, ``layers/0/mlp`` and ``layers/1/mlp``: what is left is ``layers/mlp``.
    parts = [a for a, b in zip(one.scope.split("/"), other.scope.split("/"), strict=False) if a == b]
    return replace(
        one, scope="/".join(parts), axes=tuple(axis for axis in mesh if axis in (*one.axes, *other.axes)),
        devices=max(one.devices, other.devices), hosts=max(one.hosts, other.hosts),
        bytes=(one.count * one.bytes + other.count * other.bytes) / count, count=count,
        seconds=one.seconds + other.seconds, exposed=one.exposed + other.exposed,
        flag="; ".join(dict.fromkeys(filter(None, (*one.flag.split("; "), *other.flag.split("; "))))),
    )  # fmt: skip


def exposed_shares(ops: Ops) -> dict[str, float]:
    """Return the share of each instruction's time that nothing hides, over all passes that are listed."""
    exposed, total = exposed_seconds(ops), ops["end"] - ops["start"]
    count = len(ops.labels)
    over = np.bincount(ops["label"], exposed, count), np.bincount(ops["label"], total, count)
    return {label.name: float(over[0][at] / over[1][at]) for at, label in enumerate(ops.labels) if over[1][at] > 0}


def axes_of_groups(exchange: HloExchange, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Return the axes of a mesh over which the participants of a collective differ.

    Args:
        exchange: its groups are positions in the mesh, the last axis first.
        mesh: devices along each axis.
    """
    shape = tuple(mesh.values())
    if not shape:
        return ()
    coords = np.stack(np.unravel_index(exchange.groups, shape), -1)  # (groups, participants, axes)
    differ = (coords != coords[:, :1]).any((0, 1))
    return tuple(axis for axis, moves in zip(mesh, differ, strict=True) if moves)
