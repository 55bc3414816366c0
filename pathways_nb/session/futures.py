"""Futures: opaque handles to logical buffers that exist before their values do (Pathways, sections 3 and 4.6).

A fetch gives host values (NumPy), so that ordinary code never launches on an island's devices behind the
controller's back. Nothing here waits unless a value is needed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from pathways_nb.errors import CancelledError, LostError, PathwaysError, UsageError
from pathways_nb.plan import source_lines
from pathways_nb.program.signature import Aval, Deferred
from pathways_nb.runtime.run_state import Entry, lost
from pathways_nb.runtime.sim.simulated_pod import Abstract
from pathways_nb.session import default_controller, tenant_scope
from pathways_nb.session.handle import NotAnArray
from pathways_nb.session.session import Session
from pathways_nb.trace.record import Row, label_of
from pathways_nb.util import forks
from pathways_nb.util.unique import Unique

if TYPE_CHECKING:
    from pathways_nb.plan.plan import Placement


class Future(Unique, NotAnArray, Deferred):
    """The result of a call, perhaps not computed yet.

    ``.result()``, ``float(y)``, ``np.asarray(y)``, iteration, ``await y`` and a number format in an f-string wait
    and give host values; ``.done()`` asks; ``.array()`` gives the live sharded ``jax.Array``.
    """

    _not_pickled = "cannot be pickled: save pw.get(tree) or y.result(), its host values."
    # Class-wide defaults: a training step makes a future for each of its many results.
    _entry: Entry | None = None
    _buffer = -1
    _sharding: Any = None
    _flush: Callable[[], None] | None = None
    _consumed = ""
    _release: Callable[[int], None] | None = None
    place: int | None = None
    """The serial of the virtual slice where it is made or was put."""
    copies: Mapping[Placement, Future] = {}
    """The same small value on other devices that needed it, by those devices."""

    def __init__(self, session: Session, aval: Aval, name: str):
        self._session, self.aval, self._name = session, aval, name

    # ---- made by the client

    def bind(self, buffer: int, entry: Entry, sharding: Any, release: Callable[[int], None]) -> None:
        """The call was dispatched: this is where its value will be; ``release`` is told when nobody holds it."""
        self._buffer, self._entry, self._sharding, self._release = buffer, entry, sharding, release
        if self._flush is not None:
            self._flush = None

    def __del__(self) -> None:
        if self._release is not None:
            self._release(self._buffer)

    def cast(self, shadow: Any) -> None:
        """It is simulated; ``shadow``, of a real controller or the host's, has its value."""
        assert self._entry is not None
        self._entry.shadow = shadow

    @property
    def shadow(self) -> Any:
        """Itself or, if it is simulated, what has its value; ``None`` if nothing has."""
        if self._session.attach_options.simulated is None:
            return self
        return self._entry.shadow if self._entry is not None else None

    def await_flush(self, flush: Callable[[], None]) -> None:
        """The call is gathered and not dispatched yet; ``flush`` dispatches it."""
        self._flush = flush

    def take(self, other: Future) -> None:
        """Become ``other``, the dispatched future of the same value."""
        release, other._release = other._release, None
        assert other._entry is not None
        assert release is not None
        self.bind(other._buffer, other._entry, other._sharding, release)
        self.place, self.copies = other.place, other.copies

    def fail(self, error: BaseException) -> None:
        """The call could not be dispatched, or was interrupted before it was."""
        self._flush = None
        if isinstance(error, KeyboardInterrupt):
            text = f"{self._name} was cancelled before it was dispatched. Call it again to compute it."
            self._entry = Entry(error=CancelledError(text))
        else:
            text = f"{self._name} was not dispatched: {type(error).__name__}: {error}"
            self._entry = Entry(error=error if isinstance(error, PathwaysError) else CancelledError(text))

    def consume(self, where: str) -> None:
        """A call at ``where`` donated it; ``""`` takes that back."""
        self._consumed = where

    def check_usable(self) -> None:
        """Raise if a call donated it.

        Raises:
            LostError: naming the line that donated it.
        """
        if self._consumed:
            raise LostError(
                f"{self._name} was donated at {self._consumed}: its memory belongs to that call's result. "
                f"Use that result, or do not donate it."
            )

    def held_in(self, entries: Mapping[int, Entry]) -> int | None:
        """Its logical buffer, if it is one of a driver's ``entries``. Whether it is usable is the caller's to check."""
        if self._flush is not None:
            self._flush()
        return self._buffer if entries.get(self._buffer) is self._entry else None

    def is_held_in(self, entries: Mapping[int, Entry]) -> bool:
        """Whether one of a driver's ``entries`` is to have its value, as far as is known."""
        return self._entry is not None and entries.get(self._buffer) is self._entry and self._entry.error is None

    @property
    def buffer(self) -> int:
        """Its logical buffer."""
        return self._buffer

    def keep_copy(self, where: Placement, copy: Future) -> None:
        """The program that makes it leaves ``copy`` on these devices."""
        self.copies = {**self.copies, where: copy}

    # ---- for everyone

    @property
    def shape(self) -> tuple[int, ...]:
        """Global shape."""
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        """Element type."""
        return self.aval.dtype

    @property
    def weak_type(self) -> bool:
        """As in JAX."""
        return self.aval.weak_type

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.aval.shape)

    @property
    def sharding(self) -> Any:
        """The ``jax.sharding`` it has on its devices; dispatches a gathered call, does not wait."""
        self._dispatch()
        return self._sharding

    def done(self) -> bool:
        """Whether it is computed (or has failed). Does not wait for the value; a gathered call is sent out first.

        On simulated devices the next thing happens first, once every client thread waits: ``while not y.done()`` ends.
        """
        if self._flush is not None:
            self._flush()
        if not self._is_resolved and (driver := self._session.driver_or_none) is not None:
            driver.event_loop.refuse_policies()
            driver.poll()
            driver.check()
        return self._is_resolved

    @property
    def _is_resolved(self) -> bool:
        return self._flush is None and self._entry is not None and self._entry.resolved

    def result(self) -> Any:
        """Wait and return the value as NumPy (typed PRNG keys stay JAX's).

        Raises:
            NodeError: the node that makes it failed. CancelledError: it was interrupted before it was dispatched.
            LostError: it was donated, or its devices were let go.
        """
        __tracebackhide__ = True
        return self._fetch(self._line())

    def wait(self) -> None:
        """Wait until it is computed, without fetching it. Raises as ``result``."""
        __tracebackhide__ = True
        entry = self._entry
        if entry is None or entry.array is None or entry.error is not None or self._consumed or not entry.resolved:
            self._wait(self._line())

    def array(self) -> jax.Array:
        """The live sharded ``jax.Array`` on the island's devices.

        Operations on it launch on those devices beside the controller's own, unseen by its scheduler and record;
        ``.result()`` is what most code wants. Raises as ``result``.
        """
        __tracebackhide__ = True
        line = self._line()
        array = self._wait(line, needed=True)
        if not isinstance(array, Abstract):
            return array
        if isinstance(self.shadow, Future):
            return self.shadow.array()
        raise _no_value(self, line)

    def _line(self) -> str:
        """The user's line that asks, where a record will tell it."""
        return source_lines.user_line() if self._session.recordings else ""

    def _fetch(self, line: str) -> Any:
        """The host value, needed by the user's ``line``."""
        __tracebackhide__ = True
        return _to_host(self._wait(line, needed=True), self, line)

    def _dispatch(self) -> None:
        forks.refuse()
        self.check_usable()
        if self._flush is not None:
            self._flush()

    def _wait(self, line: str, needed: bool = False) -> Any:
        __tracebackhide__ = True
        default_controller.close_replaced()
        self._dispatch()
        entry, driver = self._entry, self._session.driver_or_none
        if entry is None:
            raise lost(self._name)
        if needed:
            for run, _ in self._session.recordings:
                run.need(entry, line)
        if driver is not None and not entry.resolved:
            driver.event_loop.refuse_policies()
            tenant = tenant_scope.current()
            began = driver.reached_by(tenant.name if tenant is not None else "")
            driver.ended.wait(lambda: entry.resolved or driver.broken)
            driver.check()
            self._note("wait", began, line)
        self.check_there()
        if entry.array is None:
            raise lost(self._name)
        return entry.array

    def check_there(self) -> None:
        """Raise what is known of why there will be no value; never waits. Raises as ``result``."""
        if self._entry is not None and (error := self._entry.error) is not None:
            # A copy: a traceback on the stored error would keep this future, and all it holds, alive.
            raise type(error)(*error.args) from error.__cause__
        if self._lost:
            raise lost(self._name)

    @property
    def _lost(self) -> bool:
        """Whether its devices were let go, or its controller was reset, since it was computed."""
        return self._entry is not None and self._entry.array is None and self._entry.resolved

    def _note(self, kind: str, began: float, line: str) -> None:
        driver = self._session.driver_or_none
        if driver is not None:
            label = label_of(kind, self._name, bytes=self.aval.bytes if kind == "fetch" else 0, line=line)
            end = max(began, driver.clock())
            self._session.active_record().add(Row(label, began, end, quality=driver.quality))

    def __await__(self) -> Generator[Any, None, Any]:
        if self._session.attach_options.simulated is not None:
            return self._polled(self._line()).__await__()
        return asyncio.get_running_loop().run_in_executor(None, self._fetch, self._line()).__await__()

    async def _polled(self, line: str) -> Any:
        """Let simulated time pass between what the loop's other tasks do, in the loop's own order."""
        while not self.done():
            await asyncio.sleep(0)
        return self._fetch(line)

    def __repr__(self) -> str:
        shape = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        if self._consumed:
            state = f"donated at {self._consumed}"
        elif self._entry is not None and self._entry.error is not None:
            state = "failed"
        elif self._lost:
            state = "lost: its devices have been let go"
        else:
            state = "done" if self._is_resolved else "not computed yet"
        return f"<future {self._name}: {shape}, {state}>"

    def __float__(self) -> float:
        __tracebackhide__ = True
        return float(self.result())

    def __int__(self) -> int:
        __tracebackhide__ = True
        return int(self.result())

    def __bool__(self) -> bool:
        __tracebackhide__ = True
        return bool(self.result())

    def __index__(self) -> int:
        __tracebackhide__ = True
        return self.result().__index__()

    def __complex__(self) -> complex:
        __tracebackhide__ = True
        return complex(self.result())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        __tracebackhide__ = True
        return np.asarray(self.result(), dtype=dtype)

    def __iter__(self) -> Iterator[Any]:
        __tracebackhide__ = True
        return iter(self.result())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a future of a scalar")
        return self.shape[0]

    def __format__(self, spec: str) -> str:
        __tracebackhide__ = True
        return format(self.result(), spec) if spec else repr(self)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the whole array in bytes."""
        return self.aval.bytes

    def block_until_ready(self) -> Future:
        """Wait until it is computed, as ``jax.block_until_ready`` does for arrays; returns itself."""
        self.wait()
        return self


def _no_value(future: Future, line: str) -> UsageError:
    line = line or source_lines.user_line()
    needed = f" at {line}" if line else ""
    return UsageError(
        f"the value of {future._name} is needed{needed}, and simulated devices compute none. Wait for it with "
        f'y.wait() instead, simulate with values=True (small programs), or attach real devices: pw.attach("cpu").'
    )


def _to_host(array: Any, future: Future, line: str) -> Any:
    __tracebackhide__ = True
    driver = future._session.driver_or_none
    began = driver.clock() if driver is not None else 0.0
    if isinstance(array, Abstract):
        shadow = future.shadow
        if shadow is None:
            raise _no_value(future, line)
        return shadow.result() if isinstance(shadow, Future) else np.array(shadow)[()]
    if not isinstance(array, jax.Array):
        return np.array(array)[()]
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        # The private base array is only read; the public key_data would launch on the island from this thread.
        data: Any = np.array(array._base_array if hasattr(array, "_base_array") else jax.random.key_data(array))
        value: Any = jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
    else:
        value = np.array(array)[()]  # a copy: the island's memory may be donated later
    future._note("fetch", began, line)
    return value
