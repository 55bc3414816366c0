"""Logical buffers as a process holds them, and who holds them: a token that releases its buffer when it is gone.

A future is the token of its buffer; a value without a future has a ``Hold``. Python may run a finalizer at any bytecode
of any thread, and an interrupt inside ``__del__`` is lost. So the end of a token runs no Python code: it is a call of
``SimpleQueue.put``, and the event loop's thread does the rest. A token is made before anybody else knows of its buffer,
so that a call that is interrupted anywhere holds nothing afterwards.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

from pathways_nb.errors import PathwaysError
from pathways_nb.plan.plan import Placement
from pathways_nb.runtime.lowering.pieces import Located


class Hold:
    """The right to a logical buffer that no future has; once nothing refers to it any more, the buffer is released."""

    __slots__ = ("__weakref__",)


_ANYBODY = Hold()
"""Stands for the holder of an entry whose end nobody waits for."""


_FEW = 8
"""Entries up to which equal ones are not looked for."""
_MOST_READERS = 16
"""Readers of a buffer from which on those that have read it are forgotten."""


class Entry(weakref.ref[object]):
    """A logical buffer as this process holds it: a live array, a host value, or the reason why there is none.

    It is the weak reference to its token, too: what the event loop finds in its queue when the token is gone. One
    object for both, since a training step makes hundreds.

    Attributes:
        buffer: its number; -1 of one that no controller counts.
        array: the live array or host value, once there is one.
        error: why there is none.
        readers: of each submitted run that brings it to its places, the steps that are still to bring an argument; of
            runs that have brought all, an empty set or none.
        moves: one item for each move of its own run, or message, that is still to read it; ``None`` before the first.
            It is a list because adding to one takes no lock and no interrupt divides it.
        run: the run that makes it, if one does: a ``RunState``, whose module imports this one.
        step: the step of ``run`` that makes it.
        shared: whether another buffer, or the user, has the same array; then its memory must not be taken over.
        sharding: of the array, known before it exists; ``None`` for host values.
        where: its devices, if it was put there and not made by a run.
    """

    __slots__ = (
        "array", "buffer", "error", "moves", "readers", "run", "sharding", "shared", "step", "where",
    )  # fmt: skip
    array: Any
    buffer: int
    error: PathwaysError | None
    moves: list[None] | None
    readers: tuple[set[int], ...]
    run: Any
    sharding: Any
    shared: bool
    step: int
    where: Placement | None

    def __eq__(self, other: object) -> bool:
        return self is other  # a weak reference would compare the tokens

    def __hash__(self) -> int:
        return id(self)

    @property
    def placement(self) -> Placement | None:
        """The devices that hold it or will hold it; ``None`` of a value on the host."""
        if self.run is None:
            return self.where
        plan = self.run.compiled_plan.plan
        return plan.placements[plan.steps[self.step].place]

    @property
    def located(self) -> Located | None:
        """The devices that hold it, and its sharding; ``None`` for a value on the host."""
        return None if (where := self.placement) is None else Located(self.sharding, where)

    def route_to(self, island: int) -> str:
        """Return how it travels to an island: from the host, within the island, or from another."""
        if (where := self.placement) is None:
            return "host"
        return "ICI" if where.island == island else "DCN"

    def lose(self, error: PathwaysError) -> None:
        """Drop the value and keep the error."""
        self.error, self.array = self.error or error, None

    def has_moved(self) -> None:
        """Count one pending move less."""
        assert self.moves is not None
        self.moves.pop()

    @property
    def resolved(self) -> bool:
        """Whether it is computed or never will be."""
        return self.error is not None or self.run is None or self.run.finished or bool(self.run.done[self.step])


class ResultEntries(Mapping[int, list[Entry]]):
    """The entries of a run's results, by slot.

    Args:
        entries: in the plan's order of results.
        positions: by slot, their positions among these.
    """

    def __init__(self, entries: list[Entry], positions: Mapping[int, Sequence[int]]):
        self.entries, self._positions = entries, positions

    def __getitem__(self, slot: int) -> list[Entry]:
        return [self.entries[at] for at in self._positions[slot]]

    def __iter__(self) -> Iterator[int]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, slot: object) -> bool:
        return slot in self._positions


def stored(
    array: Any = None,
    *,
    error: PathwaysError | None = None,
    shared: bool = False,
    sharding: Any = None,
    where: Placement | None = None,
    buffer: int = -1,
    token: object = _ANYBODY,
    put: Callable[[Any], object] | None = None,
) -> Entry:
    """Return the entry of a value that no run makes; see ``Entry``.

    Args:
        array: the value, if there is one already.
        error: why there is none.
        shared: whether the user, or another buffer, has the same array.
        sharding: of the array.
        where: its devices.
        buffer: its number.
        token: what holds it.
        put: puts the entry into the event loop's queue, in C, when the token is gone.
    """
    (made,) = promised(None, (buffer,), (-1,), (sharding,), (token,), put)
    made.array, made.error, made.shared, made.where = array, error, shared, where
    return made


def promised(
    run: Any,
    buffers: Sequence[int],
    steps: Iterable[int],
    shardings: Iterable[Any],
    tokens: Iterable[object] = repeat(_ANYBODY),
    put: Callable[[Any], object] | None = None,
) -> list[Entry]:
    """Return the entries of results that a run makes; ``put`` as in ``stored``.

    Args:
        run: the run.
        buffers: the number of each.
        steps: the step that makes each.
        shardings: of each array.
        tokens: what holds each.
        put: puts an entry into the event loop's queue, in C, when its token is gone.
    """
    # Spelled out, and not in a constructor: it is the dearest part of a call with hundreds of results.
    entries = list(map(Entry, tokens, repeat(put, len(buffers))))
    for entry, buffer, step, sharding in zip(entries, buffers, steps, shardings, strict=True):
        entry.buffer, entry.run, entry.step, entry.sharding = buffer, run, step, sharding
        entry.array = entry.error = entry.moves = entry.where = None
        entry.readers, entry.shared = (), False
    return entries


def will_read(entries: Iterable[Entry], unread: set[int]) -> None:
    """Count one more run that reads these entries; one thread at a time may.

    Args:
        entries: what the run brings to its places.
        unread: its steps that are still to bring an argument; once there are none, it has read them.
    """
    entries = list(entries)
    before = list(map(_readers_of, entries))
    after: Iterable[tuple[set[int], ...]] = map(_with_reader, before, repeat(unread))
    if len(before) >= _FEW:  # then one for the results of a call, which are read together
        distinct = dict(zip(map(id, before), before, strict=True))
        made = {number: _with_reader(readers, unread) for number, readers in distinct.items()}
        after = map(made.__getitem__, map(id, before))
    at_once(map(_set_readers, entries, after))


_readers_of, _set_readers = attrgetter("readers"), Entry.__dict__["readers"].__set__


def _with_reader(readers: tuple[set[int], ...], unread: set[int]) -> tuple[set[int], ...]:
    if len(readers) < _MOST_READERS:
        return (*readers, unread)
    return (*filter(None, readers), unread)  # not at each call: hundreds may wait to read it


def will_move(entries: Iterable[Entry]) -> None:
    """Count one more pending move of each entry; one thread at a time may."""
    for entry in entries:
        if entry.moves is None:
            entry.moves = []
        entry.moves.append(None)


def at_once(changes: Iterable[object]) -> None:
    """Make changes that belong together, so that an interrupt comes before all of them or after them.

    Args:
        changes: an iterator in C over calls of functions in C, such as ``map(dict.update, ...)``: none of their
            bytecodes is Python's, and Python raises an interrupt between bytecodes only.
    """
    deque(changes, maxlen=0)
