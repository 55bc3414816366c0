"""``pw.check_orders``: orders of gangs, or the collectives of several ranks as their runs have them.

A collective waits for all members of its group. Where one of them sends another collective, or none, the others wait
for ever. So the n-th collective of a group must be the same on all ranks: its kind, its size, its type.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from pathways_nb.controller.order_difference import OrderDifference, SentCollective, known_of, rank_words
from pathways_nb.controller.orders import Gang, OrderCheck, check_gangs, find_cycle
from pathways_nb.errors import UsageError
from pathways_nb.results.run import Run
from pathways_nb.runtime.recorded.recorded_run import ALL_RANKS

_WORDS = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|collective_?permute|broadcast|reduce|send|recv",
    re.IGNORECASE,
)
_Row = tuple[str, str, SentCollective]
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
        runs the first collective that differs, as ``difference``. Collectives of several groups that ranks called in
        opposite orders may hang and may not: they are named, and are ``between``.

    Raises:
        UsageError: ``orders`` is no dictionary, has orders and runs, or an island has the same gang twice.
    """
    values = list(orders.values()) if isinstance(orders, Mapping) else []
    if not any(isinstance(one, Run) for one in values):
        return check_gangs(orders)  # type: ignore[arg-type]  # none of them is a run
    if not all(isinstance(one, Run) for one in values):
        raise UsageError("check_orders: some values are runs and some are orders; give one kind of them for all.")
    return _check_runs(orders)  # type: ignore[arg-type]  # all of them are


def _check_runs(runs: Mapping[Hashable, Run]) -> OrderCheck:
    """Return whether the collectives of ranks are the same, group by group.

    Raises:
        UsageError: there are none.
    """
    sent = {rank: _sent(run) for rank, run in runs.items()}
    groups = _by_group(sent, {rank: _number_of(rank, run) for rank, run in runs.items()})
    if not groups:
        raise UsageError(
            "check_orders: none of these runs has a collective; sends and receives between two ranks are not compared."
        )
    count = sum(max(map(len, ranks.values())) for ranks in groups.values())
    between = None
    if all(run.about.get("collectives") for run in runs.values()):
        between = tuple(find_cycle({rank_words(rank): _names(rows) for rank, rows in sent.items()}) or ())
    return OrderCheck(len(runs), count, (), _first_difference(groups), len(groups), between)


def _by_group(
    sent: Mapping[Hashable, Sequence[_Row]], numbers: Mapping[Hashable, int | None]
) -> dict[str, dict[Hashable, list[SentCollective]]]:
    """Return the collectives by group, and then by rank; of several devices in a run, by rank and device.

    Args:
        sent: by rank.
        numbers: of the ranks, as groups name them.
    """
    groups: defaultdict[str, dict[Hashable, list[SentCollective]]] = defaultdict(dict)
    for rank, rows in sent.items():
        for device, group, one in rows:
            groups[group].setdefault(f"{rank}, {device}" if device else rank, []).append(one)
    for group, ranks in groups.items():
        members = set(map(int, re.findall(r"\d+", group.partition(", ranks ")[2])))
        for rank, rows in sent.items():
            # A member that has sent none is the one that all others wait for.
            if not any(device for device, _, _ in rows) and (group == ALL_RANKS or numbers[rank] in members):
                ranks.setdefault(rank, [])
    return groups


def _number_of(rank: Hashable, run: Run) -> int | None:
    """Return the number of a rank, as its trace says it or as the user has named it; ``None`` if neither tells."""
    told = run.about.get("trace", {}).get("rank", -1)
    if isinstance(told, int) and told >= 0:
        return told
    found = re.fullmatch(r"\D*(\d+)", str(rank))
    return int(found[1]) if found else None


def _names(rows: Sequence[_Row]) -> list[str]:
    """Return the collectives of a rank in the order of its calls, each with its number in its group."""
    seen = Counter[str]()
    found = []
    for _, group, one in rows:
        found.append(f"{one.kind} {seen[group]} of {group}")
        seen[group] += 1
    return found


def _first_difference(groups: Mapping[str, Mapping[Hashable, list[SentCollective]]]) -> OrderDifference | None:
    """Return the first collective that is not the same on all ranks of its group.

    Args:
        groups: by group and rank, its collectives in order.
    """
    found: list[OrderDifference] = []
    for group, ranks in groups.items():
        for position, row in enumerate(zip_longest(*ranks.values())):
            if len(set(map(known_of, row))) > 1:
                found.append(OrderDifference(group, position, dict(zip(ranks, row, strict=True))))
                break

    def began(one: OrderDifference) -> float:
        return min(each.start for each in one.sent.values() if each is not None)

    # Of several groups the one that differs first in time: what comes later may follow from it.
    return min(found, key=began, default=None)


def _sent(run: Run) -> list[_Row]:
    """Return the collectives of a run in order: device, group, collective; of one device its name is empty."""
    # The calls of a process, where its trace has them: what waits for ever on a device never ends, and is in no trace.
    if called := run.about.get("collectives"):
        split = ((group, *detail.partition("; ")[::2], size, start) for group, detail, size, start in called)
        made = [(group, _collective(told, told, size, element, start)) for group, element, told, size, start in split]
        return [("", group or ALL_RANKS, one) for group, one in made if one.kind not in _BETWEEN_TWO]
    events = run.events.of_kind("collective")
    rows: list[tuple[str, str, SentCollective, int]] = []
    if not len(events):  # of a profiled run, or of a predicted one
        rows = [("", "", _op(op), op.device) for op in run.ops.of(kind="collective")]
    events = events.select(np.argsort(events["start"], kind="stable"))
    labels = [events.labels[number] for number in events.label.tolist()]
    for label, start in zip(labels, events["start"].tolist(), strict=True):
        group, detail, told = [*label.basis.split("; "), "", ""][:3]
        one = _collective(told, label.name, label.bytes, detail, start)
        rows.append((label.place.partition(",")[0], group, one, label.device))
    # Of PyTorch's processes, the calls: what a back end does of them later may be missing where a job hangs.
    rows = [row for row in rows if row[2].name.startswith(_CALL)] or rows
    several = len({device for *_, device in rows}) > 1
    return [
        ((place or f"dev {device}") if several else "", group or ALL_RANKS, one)
        for place, group, one, device in rows
        if one.kind not in _BETWEEN_TWO
    ]


def _collective(told: str, name: str, size: int, element: str, start: float) -> SentCollective:
    # What is told goes before the name: a kernel that exchanges between pairs may stand for an all-to-all.
    kind = _kind(told or name)
    return SentCollective(kind, 0 if kind == _UNEVEN else size, element, name, start)


def _op(op: Any) -> SentCollective:
    return SentCollective(_kind(op.name), 0, op.work, op.name, op.start)


def _kind(name: str) -> str:
    """Return the kind of a collective, by the name of a kernel or an operation; its own name if that says none."""
    found = _WORDS.search(name.replace("-", "_"))
    return found[0].replace("_", "").lower() if found else name
