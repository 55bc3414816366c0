"""The operations inside launches: which HLO op ran when on which device, and which operation of the program it is.

A launch is one event of the record, however many operations the compiler made of it. A profiler sees each of these ops.
``Ops`` keeps them as columns, because one launch may have thousands. The compiler names each op, and says for most of
them from which operation of the program they come (``source``); where it does not, ``source`` is empty.

Times are in seconds since the run began. A profile's ops are made in ``runtime.local.launch_op_sources``, those of a
compiled program that did not run in ``cost.launch.opened_launch``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from pathways_nb.util.words import counted

OpKind = Literal["compute", "collective", "copy", "gather", "reduce", "wait", "prefetch", "host", "dcn"]
"""What an op does. A planned step has ``"gather"`` and ``"reduce"``: collectives on streams of their own. What holds
computation up is a ``"wait"``, in a planned step and in an opened launch. An opened launch also has what runs beside
computation on queues of their own: ``"prefetch"`` (copies between memories of devices), ``"host"`` (to the host's
memory and back) and ``"dcn"`` (between slices)."""
Phase = Literal["", "forward", "backward", "recomputed", "optimizer"]
"""Part of a training step; empty where the compiled module does not say."""
BACKWARD: tuple[Phase, ...] = ("backward", "recomputed")
"""The phases of a backward pass: what it computes, and what it computes again for that."""
_MERGED = re.compile("[:;]")
"""Between operations that the compiler merged."""
_RECOMPUTED, _BACKWARD, _FORWARD = "rematted_computation", "transpose(jvp(", "jvp("
SCOPES: Mapping[str, Phase] = {"forward pass": "forward", "backward pass": "backward"}
"""Scopes that say the phase of what no transformation made, such as the exchanges that a compiler pass inserts."""


def first_source(source: str) -> str:
    """Return the first of the operations that the compiler merged into one, all of which its name stack lists."""
    return _MERGED.split(source)[0]


def phase_of(source: str) -> Phase:
    """Return the part of a step that JAX's name stack says: which transformation an operation went through.

    What went through none may be anything, the optimizer as well.

    Args:
        source: of an op.
    """
    first = first_source(source)
    if _RECOMPUTED in first:
        return "recomputed"
    if _BACKWARD in first:
        return "backward"
    return "forward" if _FORWARD in first else next((SCOPES[one] for one in first.split("/") if one in SCOPES), "")


class OpLabel(NamedTuple):
    """All that is known of an op except when and where it ran; shared by its occurrences.

    Args:
        name: its name in the compiled module, such as ``"all-gather.3"``.
        source: the operation of the program that it stems from, with JAX's name stack, such as
            ``"jit(pw_step)/shard_map/hidden/tanh"``; of a fusion, that of the operation at its end; empty if the
            compiled module does not say.
        kind: one of ``OpKind``.
        launch: name of the node that was launched.
        program: name of the program.
        node: id of the node in the program's graph.
        line: the innermost line of the user's code that it stems from, such as ``"train.py:12"``; empty if unknown.
        phase: part of the step.
        work: what it does in numbers, such as ``"all-gather of 128 MiB, 2 groups of 8"``; empty if unknown.
    """

    name: str
    source: str
    kind: OpKind
    launch: str
    program: str
    node: int
    line: str = ""
    phase: Phase = ""
    work: str = ""


class Op(NamedTuple):
    """One op on one device; the first six fields and the last three are those of ``OpLabel``.

    Args:
        run: serial of the run, as in ``run.events``.
        island: index of the island.
        device: index of the device within the island.
        start: in seconds since the run began.
        end: in seconds since the run began.
    """

    name: str
    source: str
    kind: OpKind
    launch: str
    program: str
    node: int
    run: int
    island: int
    device: int
    start: float
    end: float
    line: str = ""
    phase: Phase = ""
    work: str = ""


OP_STORED: dict[str, type] = {  # what is kept for each op
    **dict.fromkeys(("label", "run", "island", "device"), np.int32),
    **dict.fromkeys(("start", "end"), np.float64),
}


class Ops(Sequence[Op]):
    """Ops in the order in which their launches were dispatched.

    ``ops["start"]`` is a NumPy column, ``ops[0]`` an ``Op``, ``ops[:10]`` the first ten.

    Args:
        labels: what ops have in common except device and stamps.
        stored: for each op its label's position, run, device and stamps, by the names in ``OP_STORED``.
        note: what else a reader must know of them.
    """

    def __init__(self, labels: Sequence[OpLabel] = (), stored: dict[str, np.ndarray] | None = None, note: str = ""):
        self._parts = labels, stored or {name: np.zeros(0, dtype) for name, dtype in OP_STORED.items()}
        self.note = note

    def parts(self) -> tuple[Sequence[OpLabel], dict[str, np.ndarray]]:
        """Return the labels and the stored columns."""
        return self._parts

    @property
    def labels(self) -> Sequence[OpLabel]:
        """What ops have in common except device and stamps."""
        return self.parts()[0]

    @property
    def _stored(self) -> dict[str, np.ndarray]:
        return self.parts()[1]

    @classmethod
    def from_rows(cls, rows: Iterable[Op]) -> Ops:
        """Return ops as columns."""
        numbers: dict[OpLabel, int] = {}
        # Labels by value: a profile has few different ops, each with thousands of occurrences.
        kept = [(numbers.setdefault(OpLabel(*row[:6], *row[11:]), len(numbers)), *row[6:11]) for row in rows]
        columns = zip(*kept, strict=True) if kept else [()] * len(OP_STORED)
        stored: dict[str, np.ndarray] = {
            name: np.array(one, OP_STORED[name]) for name, one in zip(OP_STORED, columns, strict=True)
        }
        return cls(list(numbers), stored)

    def __len__(self) -> int:
        return len(self._stored["label"])

    @overload
    def __getitem__(self, at: str) -> np.ndarray: ...
    @overload
    def __getitem__(self, at: int) -> Op: ...
    @overload
    def __getitem__(self, at: slice) -> Ops: ...
    def __getitem__(self, at: str | int | slice) -> np.ndarray | Op | Ops:
        if isinstance(at, slice):
            return self.select(np.arange(len(self))[at])
        if not isinstance(at, str):
            label, *rest = (self._stored[name][at].item() for name in OP_STORED)
            return _op(self.labels[label], rest)
        if at in self._stored:
            return self._stored[at]
        if at not in OpLabel._fields:
            raise KeyError(f"{at!r} is no column of ops; choose from {', '.join(Op._fields)}")
        of_labels = np.empty(len(self.labels), np.int32 if at == "node" else object)
        of_labels[:] = [getattr(label, at) for label in self.labels]
        return of_labels[self._stored["label"]]

    def __iter__(self) -> Iterator[Op]:
        columns = (self._stored[name].tolist() for name in OP_STORED)
        return (_op(self.labels[label], rest) for label, *rest in zip(*columns, strict=True))

    def stored(self, name: str) -> np.ndarray:
        """Return a column of ``OP_STORED``."""
        return self._stored[name]

    def select(self, mask: np.ndarray) -> Ops:
        """Return the ops for which ``mask`` is true, or those at the given indices."""
        return Ops(self.labels, {name: part[mask] for name, part in self._stored.items()}, self.note)

    def moved(self, islands: int, seconds: float) -> Ops:
        """Return the ops on islands with higher numbers, and at later times."""
        by = {"island": islands, "start": seconds, "end": seconds}
        return Ops(self.labels, {name: part + by.get(name, 0) for name, part in self._stored.items()}, self.note)

    def repeated(self, runs: np.ndarray, starts: np.ndarray, factors: np.ndarray) -> Ops:
        """Return the ops of one launch as those of several launches.

        Args:
            runs: (launches,) serial of the run of each.
            starts: (launches,) when each began, in seconds; here it began at 0.
            factors: (launches,) how many times longer each took.
        """
        stored = {name: np.tile(part, len(runs)) for name, part in self._stored.items()}
        stored["run"] = np.repeat(runs, len(self)).astype(OP_STORED["run"])
        for name in ("start", "end"):
            stored[name] = (starts[:, None] + factors[:, None] * self._stored[name]).reshape(-1)
        return Ops(self.labels, stored)

    def of(
        self,
        launch: str | None = None,
        run: int | None = None,
        device: int | None = None,
        island: int | None = None,
        kind: OpKind | None = None,
    ) -> Ops:
        """Return the ops that match every argument given.

        Args:
            launch: name of the node that was launched.
            run: serial of the run.
            device: index of the device within its island.
            island: index of the island.
            kind: one of ``OpKind``, such as ``"compute"``, ``"collective"`` or ``"copy"``.
        """
        wanted = {"launch": launch, "run": run, "device": device, "island": island, "kind": kind}
        mask = np.ones(len(self), bool)
        for name, value in wanted.items():
            if value is not None:
                mask &= self[name] == value
        return self.select(mask)

    @property
    def seconds(self) -> float:
        """The time of all ops together."""
        return float((self["end"] - self["start"]).sum())

    @property
    def joined(self) -> float:
        """The share of ``seconds`` in ops that have a source; 0 if there is none."""
        return self.select(self["source"] != "").seconds / (self.seconds or 1.0)

    @property
    def joined_words(self) -> str:
        """``joined`` as text, never rounded up to all of it."""
        return f"{math.floor(1000 * self.joined) / 10:g}%"

    def __repr__(self) -> str:
        if not len(self):
            return (
                "<no ops: they are seen by JAX's profiler, so record with pw.profile() or %%pathways --profile; on "
                "simulated chips, launches have them that the chip's own compiler has compiled>"
            )
        said = f"{counted(len(self), 'op')}, the source of {self.joined_words} of their time known"
        said += f"; {self.note}" if self.note else ""
        return f"<{said}: {', '.join(Op._fields)}>"


def _op(label: OpLabel, rest: Sequence[Any]) -> Op:
    """Return an op of its label, and what is stored of it beside that."""
    row: Any = (*label[:6], *rest, *label[6:])
    return Op._make(row)


class LateOps(Ops):
    """Ops that are made when they are first looked at; only their number is known before.

    Args:
        count: their number.
        make: makes them.
        note: what else a reader must know of them.
    """

    def __init__(self, count: int, make: Callable[[], Ops], note: str = ""):
        super().__init__(note=note)
        self._count, self._make = count, make
        self._made: Ops | None = None

    def parts(self) -> tuple[Sequence[OpLabel], dict[str, np.ndarray]]:
        """See ``Ops.parts``."""
        if self._made is None:
            self._made = self._make()
        return self._made.parts()

    def __len__(self) -> int:
        return self._count


def concatenated(*parts: Ops) -> Ops:
    """Return the ops of several runs or launches, one after another."""
    first = np.cumsum([0, *(len(one.labels) for one in parts)]).tolist()
    columns = {name: [one.stored(name) for one in parts] for name in OP_STORED}
    columns["label"] = [numbers + before for numbers, before in zip(columns["label"], first, strict=False)]
    stored: dict[str, np.ndarray] = {
        name: np.concatenate([np.zeros(0, dtype), *columns[name]]).astype(dtype, copy=False)
        for name, dtype in OP_STORED.items()
    }
    note = "; ".join(dict.fromkeys(one.note for one in parts if one.note))
    return Ops([label for one in parts for label in one.labels], stored, note)
