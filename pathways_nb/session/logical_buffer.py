"""What the client and a driver know of a future: the logical buffer that its value is or will be in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from pathways_nb.errors import CancelledError, LostError, PathwaysError
from pathways_nb.program.signature import Aval
from pathways_nb.runtime.entries import Entry, Hold, stored
from pathways_nb.session.future_kinds import FutureKind
from pathways_nb.session.session import Session

if TYPE_CHECKING:
    from pathways_nb.plan.plan import Placement


class LogicalBuffer:
    """The part of a future that a call sets when it is dispatched, and that later calls read."""

    # Class-wide defaults: a training step makes a future for each of its many results.
    _entry: Entry | None = None
    _kind: FutureKind
    _known: FutureKind | None = None
    """The same while calls may read it; ``None`` while its call is not dispatched, and once it is donated."""
    _flush: Callable[[], None] | None = None
    _consumed = ""
    _held: Hold | None = None
    """What holds its buffer, if not the future itself."""
    _value_holder: Any = None
    """In simulated time: what has its value, if anything."""
    copies: Mapping[Placement, Self] = {}
    """Copies of the same small value on other devices that needed it, by placement."""

    def __init__(self, kind: FutureKind):
        self._kind = kind

    @property
    def _session(self) -> Session:
        return self._kind.session

    @property
    def _name(self) -> str:
        return self._kind.name

    @property
    def _sharding(self) -> Any:
        return self._kind.sharding

    @property
    def aval(self) -> Aval:
        """Shape, type and padding."""
        return self._kind.aval

    @property
    def place(self) -> int | None:
        """The serial number of the virtual slice where it is computed or was put."""
        return self._kind.place

    def bind(self, entry: Entry, kind: FutureKind) -> None:
        """Attach the future to the logical buffer that its value will be in, once its call is dispatched.

        Args:
            entry: of the logical buffer.
            kind: of the future.
        """
        if kind.name != self._name:  # of a batch: it keeps the name of its own call
            kind = self._session.kind(kind.aval, self._name, kind.sharding, kind.place, kind.where)
        # Its kind first: from the moment it is bound, another thread may pass it to a call, which asks where it lies.
        self._kind = kind
        self._entry = entry
        if self._flush is not None:  # of a batched call; else the class has it, and each future is smaller
            self._flush = None
        if not self._consumed:
            self._known = kind

    def set_value_holder(self, holder: Any) -> None:
        """Attach the value of a simulated future: ``holder`` is a future of real devices or a host value."""
        self._value_holder = holder

    @property
    def value_holder(self) -> Any:
        """What has the value: the future itself, or what a simulated one has; ``None`` if nothing has."""
        if self._session.attach_options.simulated is None:
            return self
        return self._value_holder

    def await_flush(self, flush: Callable[[], None]) -> None:
        """Mark the call as batched and not dispatched; ``flush`` dispatches it."""
        self._flush = flush

    def fail(self, error: BaseException) -> None:
        """Record that the call could not be dispatched, or was interrupted before it was."""
        self._flush = None
        if isinstance(error, KeyboardInterrupt):
            text = f"{self._name} was cancelled before it was dispatched. Call it again to compute it."
            self._entry = stored(error=CancelledError(text))
        else:
            text = f"{self._name} was not dispatched: {type(error).__name__}: {error}"
            self._entry = stored(error=error if isinstance(error, PathwaysError) else CancelledError(text))

    @property
    def is_bound(self) -> bool:
        """Whether its call was dispatched and it has a logical buffer."""
        return self._entry is not None and self._entry.buffer >= 0

    def consume(self, where: str) -> None:
        """Record that a call at line ``where`` donated it; ``""`` takes that back."""
        self._consumed = where
        self._known = self._kind if self.is_bound and not where else None

    def check_usable(self) -> None:
        """Check that no call donated it.

        Raises:
            LostError: naming the line that donated it.
        """
        if self._consumed:
            raise LostError(
                f"{self._name} was donated at {self._consumed}: its memory belongs to that call's result. "
                f"Use that result, or do not donate it."
            )

    def held_in(self, entries: Mapping[int, Entry]) -> int | None:
        """Return its logical buffer if that is one of a driver's ``entries``; a batched call is dispatched first.

        The caller checks whether it is usable.
        """
        if self._flush is not None:
            self._flush()
        # By identity of the entry: after a reset, another driver counts its buffers from 0 again.
        return self.buffer if entries.get(self.buffer) is self._entry else None

    def is_held_in(self, entries: Mapping[int, Entry]) -> bool:
        """Return whether one of a driver's ``entries`` has its value or, as far as is known, will have it."""
        return self._entry is not None and entries.get(self.buffer) is self._entry and self._entry.error is None

    def location_in(self, session: Session) -> tuple[Any, Placement | None]:
        """Return sharding and devices, of a donated future, too; no devices if they are not attached in ``session``."""
        if self._flush is not None:
            self._flush()
        where = self._entry.placement if self._entry is not None and self._session is session else None
        if where is not None and session.attach_options.kind not in ("sim", "ray"):
            island = session.driver.attachment.islands[where.island]
            # A reset may have made other devices: then the placement names devices on which it never lay.
            where = where if self._sharding.device_set <= set(island.devices) else None
        return self._sharding, where

    @property
    def buffer(self) -> int:
        """Its logical buffer; -1 before its call is dispatched."""
        return -1 if self._entry is None else self._entry.buffer

    def keep_copy(self, where: Placement, copy: Self) -> None:
        """Record that its program leaves ``copy`` of it on these devices."""
        self.copies = {**self.copies, where: copy}
