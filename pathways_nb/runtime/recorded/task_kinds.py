"""The table of kinds: which of a trace's tasks compute, which are collectives, and which move data.

A row is a pattern (a regular expression, searched in the name without regard to case) and its kind; the first one that
fits counts, and what fits none computes. ``pw.load(path, kinds={…})`` puts the user's rows in front.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Literal, get_args

from pathways_nb.cost.hlo.hlo_collectives import is_collective
from pathways_nb.errors import UsageError, nearest
from pathways_nb.runtime.recorded.recorded_tasks import TaskLabel
from pathways_nb.trace.launch_ops import OpKind

TaskKind = Literal["compute", "collective", "transfer"]
"""Kinds of events that tasks of a trace become."""
TASK_KINDS: tuple[tuple[str, TaskKind], ...] = (
    (r"^mem(ory )?cpy|^copy(device|host)to|rocclr_copy|^(hip|cu(da)?)memcpy", "transfer"),
    (r"^((copy|slice)-(start|done)|infeed|outfeed)(\.\d+)?$", "transfer"),
    (r"[nr]ccl\w{0,9}kernel|^(nccl|rccl|c10d|gloo|mpi|ucc|xccl):|oneccl|msccl", "collective"),
    (r"nvshmem|rocshmem|deep_ep::|cross_device_reduce|multimem_(all|one|two)|symm_mem", "collective"),
    (r"all[-_ ]?(reduce|gather|to[-_ ]?all)|reduce[-_ ]?scatter|collective[-_ ]?(permute|broadcast)", "collective"),
)  # fmt: skip
"""Names of kernels, copies and operations of CUDA, ROCm, XLA and PyTorch, and the kind of each."""
_TOLD: dict[str, TaskKind] = {"gpu_memcpy": "transfer", "memcpy": "transfer"}
"""Kinds that a tool says itself, where no row of the table knows better."""
_HOST_COPIES = re.compile(r"htod|dtoh|h2d|d2h|hosttodevice|devicetohost|infeed|outfeed|host", re.IGNORECASE)
_PEER_COPIES = re.compile(r"ptop|p2p|peer", re.IGNORECASE)


def kinds_table(kinds: Mapping[str, str] | None) -> Callable[[TaskLabel], TaskKind]:
    """Return what says the kind of a task.

    Args:
        kinds: the user's rows, pattern and kind, which count before those of ``TASK_KINDS``.

    Raises:
        UsageError: a kind is unknown, or a pattern is no regular expression.
    """
    rows = list[tuple[re.Pattern[str], TaskKind]]()
    for pattern, kind in (*(kinds or {}).items(), *TASK_KINDS):
        if kind not in get_args(TaskKind):
            near = nearest(str(kind), get_args(TaskKind)) or get_args(TaskKind)
            raise UsageError(f"load(kinds={{{pattern!r}: {kind!r}}}): choose from {', '.join(map(repr, near))}.")
        try:
            rows.append((re.compile(pattern, re.IGNORECASE), kind))  # type: ignore[arg-type]  # one of them
        except (re.error, TypeError) as error:
            raise UsageError(f"load(kinds={{{pattern!r}: …}}): this is no regular expression: {error}.") from None

    @cache
    def of_name(name: str) -> TaskKind | None:
        return next((kind for pattern, kind in rows if pattern.search(name)), None)

    def kind_of(label: TaskLabel) -> TaskKind:
        if (kind := of_name(label.name)) is not None:
            return kind
        # The operation of a kernel whose own name says nothing, such as one that is generated for a collective.
        if label.op and is_collective(_opcode(label.op)):
            return "collective"
        return _TOLD.get(label.told) or (label.op and of_name(label.op)) or "compute"

    return kind_of


_KIND_OF_TABLE = kinds_table(None)


def op_kind(name: str) -> OpKind:
    """Return the kind of an op inside a launch of which only the name is known."""
    kind = _KIND_OF_TABLE(TaskLabel(("", 0), "", name, op=name))
    return as_op_kind(kind, name)


def as_op_kind(kind: TaskKind, name: str) -> OpKind:
    """Return the kind of an op inside a launch: copies run on queues of their own, those to and from the host apart."""
    return kind if kind != "transfer" else "host" if route_of(name) == "host" else "prefetch"


def route_of(name: str) -> str:
    """Return the route of a copy, by its name: ``"host"``, ``"ICI"`` between devices, or ``"local"``."""
    return "host" if _HOST_COPIES.search(name) else "ICI" if _PEER_COPIES.search(name) else "local"


def _opcode(op: str) -> str:
    """Return the operation that XLA names an op after."""
    return op.replace("_", "-").split(".")[0]
