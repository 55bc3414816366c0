"""``pw.check_orders``: orders of gangs, or the collectives of several ranks as their runs have them.

A collective waits for all members of its group. Where one of them sends another collective, or none, the others wait
for ever. So the n-th collective of a group must be the same on all ranks: its kind, its size, its type.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from pathways_nb.controller.order_difference import OrderDifference, SentCollective, known_of
from pathways_nb.controller.orders import Gang, OrderCheck, check_gangs
from pathways_nb.errors import UsageError
from pathways_nb.results.run import Run

_WORDS = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|collective_?permute|broadcast|reduce|send|recv",
    re.IGNORECASE,
)
_CALL = "c10d::"
_UNEVEN = "alltoall"
"""The collective in which each rank may send as much as it likes."""
_BETWEEN_TWO = ("sendrecv", "send", "recv", "collectivepermute")
"""Exchanges in which ranks have different parts."""


def check_orders(orders: Mapping[Hashable, Sequence[Gang] | Run]) -> OrderCheck:
    """Return whether gangs enqueued in these orders can all run (Pathways, section 4.4).

    In place of orders there may be runs, such as the traces of several ranks,
    ``pw.check_orders({0: pw.load("rank0.json.gz"), 1: pw.load("rank1.json.gz")})``. Then the collectives of each
    process group must be the same on all its ranks, one after another, as far as the traces tell the groups.

    Args:
        orders: for each island, device or rank, the gangs enqueued on it, first to last, or its run. A gang that needs
            several of them is in the orders of all.

    Returns:
        A true value if all gangs can run; else a false value that names a cycle of gangs and has it as ``cycle``, or of
        runs the first collective that differs, as ``difference``.

    Raises:
        UsageError: ``orders`` is no dictionary, has orders and runs, or an island has the same gang twice.
    """
    values = list(orders.values()) if isinstance(orders, Mapping) else []
    if not any(isinstance(one, Run) for one in values):
        return check_gangs(orders)  # type: ignore[arg-type]  # none of them is a run
    if not all(isinstance(one, Run) for one in values):
        raise UsageError("check_orders: some values are runs and some are orders; give one kind of them for all.")
    difference, count = _first_difference(orders)  # type: ignore[arg-type]
    return OrderCheck(len(orders), count, (), difference)


def _first_difference(runs: Mapping[Hashable, Run]) -> tuple[OrderDifference | None, int]:
    """Return the first collective that is not the same on all ranks of its group, and how many there are.

    Args:
        runs: by rank.
    """
    groups: defaultdict[str, dict[Hashable, list[SentCollective]]] = defaultdict(dict)
    for rank, run in runs.items():
        for (device, group), sent in _sent(run).items():
            groups[group][f"{rank}, {device}" if device else rank] = sent
    found: list[OrderDifference] = []
    for group, ranks in groups.items():
        for position, row in enumerate(zip_longest(*ranks.values())):
            if len(set(map(known_of, row))) > 1:
                found.append(OrderDifference(group, position, dict(zip(ranks, row, strict=True))))
                break
    # Of several groups the one that differs first in time: what comes later may follow from it.
    began = [min(one.start for one in each.sent.values() if one is not None) for each in found]
    if not groups:
        raise UsageError(
            "check_orders: none of these runs has a collective; sends and receives between two ranks are not compared."
        )
    count = sum(max(map(len, ranks.values())) for ranks in groups.values())
    return (found[int(np.argmin(began))] if found else None), count


def _sent(run: Run) -> dict[tuple[str, str], list[SentCollective]]:
    """Return the collectives of a run by device and group; of one device its name is empty."""
    events = run.events.of_kind("collective")
    rows: list[tuple[str, str, SentCollective, int]] = []
    if not len(events):  # of a profiled run, or of a predicted one
        rows = [("", "", _op(op), op.device) for op in run.ops.of(kind="collective")]
    events = events.select(np.argsort(events["start"], kind="stable"))
    labels = [events.labels[number] for number in events.label.tolist()]
    for label, start in zip(labels, events["start"].tolist(), strict=True):
        group, detail, told = [*label.basis.split("; "), "", ""][:3]
        # A kernel may stand for several: what it exchanges between pairs may be an all-to-all.
        kind = _kind(told) if told else _kind(label.name)
        one = SentCollective(kind, 0 if kind == _UNEVEN else label.bytes, detail, label.name, start)
        rows.append((label.place.partition(",")[0], group, one, label.device))
    # Of PyTorch's processes, the calls: what a back end does of them later may be missing where a job hangs.
    rows = [row for row in rows if row[2].name.startswith(_CALL)] or rows
    several = len({device for *_, device in rows}) > 1
    found: defaultdict[tuple[str, str], list[SentCollective]] = defaultdict(list)
    for place, group, one, device in rows:
        if one.kind not in _BETWEEN_TWO:
            found[(place or f"dev {device}") if several else "", group or "all ranks"].append(one)
    return found


def _op(op: Any) -> SentCollective:
    return SentCollective(_kind(op.name), 0, op.work, op.name, op.start)


def _kind(name: str) -> str:
    """Return the kind of a collective, by the name of a kernel or an operation; its own name if that says none."""
    found = _WORDS.search(name.replace("-", "_"))
    return found[0].replace("_", "").lower() if found else name
