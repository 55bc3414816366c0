"""What the client and a driver know of a future: the logical buffer that its value is or will be in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from pathways_nb.errors import CancelledError, LostError, PathwaysError
from pathways_nb.program.signature import Aval
from pathways_nb.runtime.holds import Hold
from pathways_nb.runtime.run_state import Entry
from pathways_nb.session.session import Session

if TYPE_CHECKING:
    from pathways_nb.plan.plan import Placement


class LogicalBuffer:
    """The part of a future that a call sets when it is dispatched, and that later calls read."""

    # Class-wide defaults: a training step makes a future for each of its many results.
    _entry: Entry | None = None
    _buffer = -1
    _sharding: Any = None
    _flush: Callable[[], None] | None = None
    _consumed = ""
    _held: Hold | None = None
    place: int | None = None
    """The serial number of the virtual slice where it is computed or was put."""
    copies: Mapping[Placement, Self] = {}
    """Copies of the same small value on other devices that needed it, by placement."""

    def __init__(self, session: Session, aval: Aval, name: str):
        self._session, self.aval, self._name = session, aval, name

    def bind(self, held: Hold, entry: Entry, sharding: Any) -> None:
        """Attach the future to the logical buffer that its value will be in, once its call is dispatched.

        Args:
            held: the token of the logical buffer.
            entry: its entry in the driver.
            sharding: the ``jax.sharding`` of the value.
        """
        self._buffer, self._entry, self._sharding, self._held = held.buffer, entry, sharding, held
        if self._flush is not None:  # of a batched call; else the class has it, and each future is smaller
            self._flush = None

    def crop(self, shape: tuple[int, ...], padded: tuple[int, ...]) -> None:
        """Record that its array, of shape ``padded``, ends in padding: the value is its part of shape ``shape``."""
        self.aval = replace(self.aval, shape=shape, padded=padded)

    def set_value_holder(self, holder: Any) -> None:
        """Attach the value of a simulated future: ``holder`` is a future of real devices or a host value."""
        assert self._entry is not None
        self._entry.value_holder = holder

    @property
    def value_holder(self) -> Any:
        """What has the value: the future itself, or what a simulated one has; ``None`` if nothing has."""
        if self._session.attach_options.simulated is None:
            return self
        return self._entry.value_holder if self._entry is not None else None

    def await_flush(self, flush: Callable[[], None]) -> None:
        """Mark the call as batched and not dispatched; ``flush`` dispatches it."""
        self._flush = flush

    def fail(self, error: BaseException) -> None:
        """Record that the call could not be dispatched, or was interrupted before it was."""
        self._flush = None
        if isinstance(error, KeyboardInterrupt):
            text = f"{self._name} was cancelled before it was dispatched. Call it again to compute it."
            self._entry = Entry(error=CancelledError(text))
        else:
            text = f"{self._name} was not dispatched: {type(error).__name__}: {error}"
            self._entry = Entry(error=error if isinstance(error, PathwaysError) else CancelledError(text))

    @property
    def is_bound(self) -> bool:
        """Whether its call was dispatched and it has a logical buffer."""
        return self._held is not None

    def consume(self, where: str) -> None:
        """Record that a call at line ``where`` donated it; ``""`` takes that back."""
        self._consumed = where

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
        return self._buffer if entries.get(self._buffer) is self._entry else None

    def is_held_in(self, entries: Mapping[int, Entry]) -> bool:
        """Return whether one of a driver's ``entries`` has its value or, as far as is known, will have it."""
        return self._entry is not None and entries.get(self._buffer) is self._entry and self._entry.error is None

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
        """Its logical buffer."""
        return self._buffer

    def keep_copy(self, where: Placement, copy: Self) -> None:
        """Record that its program leaves ``copy`` of it on these devices."""
        self.copies = {**self.copies, where: copy}
