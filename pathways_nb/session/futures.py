"""Futures: opaque handles to logical buffers that exist before their values do (Pathways, sections 3 and 4.6).

A fetch returns a host value (NumPy), not a live ``jax.Array``: ordinary code that computes on the result then cannot
launch on an island's devices behind the controller's back. Nothing in this module waits unless a value is needed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from pathways_nb.errors import UsageError
from pathways_nb.plan import source_lines
from pathways_nb.plan.virtual_slice import VirtualSlice, by_serial, is_alive
from pathways_nb.program import context
from pathways_nb.program.program_tracer import ProgramTracer
from pathways_nb.program.signature import ArrayAttributes, Deferred
from pathways_nb.program.static_arguments import Statics
from pathways_nb.runtime.cluster.remote_array import RemoteArray
from pathways_nb.runtime.lowering.transfers import listed
from pathways_nb.runtime.run_state import lost
from pathways_nb.runtime.sim.simulated_pod import Abstract
from pathways_nb.session import default_controller, tenant_scope
from pathways_nb.session.handle import NotAnArray
from pathways_nb.session.host_conversions import HostConversions
from pathways_nb.session.logical_buffer import LogicalBuffer
from pathways_nb.session.show_sharding import show_sharding
from pathways_nb.trace.rows import Row, label_of
from pathways_nb.util import forks
from pathways_nb.util.unique import Unique

if TYPE_CHECKING:
    from pathways_nb.plan.plan import Placement


class Future(  # type: ignore[override]  # what its kind has is read only here
    Unique, LogicalBuffer, ArrayAttributes, HostConversions, NotAnArray, Deferred
):
    """The result of a call, which may not be computed yet.

    ``.result()``, ``float(y)``, ``np.asarray(y)``, iteration, ``await y`` and a number format in an f-string wait
    and return host values. ``.done()`` asks without waiting. ``.array()`` returns the live sharded ``jax.Array``.
    Where devices do not divide a parameter of ``pw.fsdp``, its array has padding, which no shape and no read shows.
    """

    _not_pickled = "cannot be pickled: save pw.get(tree) or y.result(), its host values."

    @property
    def weak_type(self) -> bool:
        """Whether the type is weak, as in JAX."""
        return self.aval.weak_type

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a future of a scalar")
        return self.shape[0]

    @property
    def sharding(self) -> Any:
        """The ``jax.sharding`` on its devices. Reading it dispatches a batched call and does not wait."""
        self._dispatch()
        return self._sharding

    def located(self) -> tuple[Any, Placement | None, VirtualSlice | None]:
        """Return its sharding, its devices and its place, as far as they are known; it does not wait."""
        self._dispatch()
        if self._sharding is None:
            self.check_there()
        sharding, where = self.location_in(self._session)
        alive = self.place is not None and is_alive(self.place)
        return sharding, where, by_serial(self.place) if alive else None  # type: ignore[arg-type]

    def show(self) -> None:
        """Draw which devices hold which part of it, without waiting; a script prints the text.

        ``pw.show_sharding(y)`` returns the same as data.
        """
        show_sharding(self).show()

    def done(self) -> bool:
        """Return whether it is computed or has failed, without waiting; a batched call is dispatched first.

        On simulated devices the call lets simulated time advance to the next event once every client thread waits, so
        that ``while not y.done()`` ends.

        Raises:
            UsageError: a program or a computation is being traced, which must not wait.
        """
        __tracebackhide__ = True
        self._refuse_traced()
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
        """Wait for the value and return it as NumPy; typed PRNG keys stay JAX's.

        Returns:
            The host value, a copy: the device's memory may be donated later.

        Raises:
            NodeError: the node that computes it failed.
            CancelledError: its call was interrupted before it was dispatched.
            LostError: it was donated, or its devices were released.
            UsageError: a program or a computation is being traced, which must not wait.
        """
        __tracebackhide__ = True
        return self._fetch(self._line())

    def wait(self) -> None:
        """Wait until it is computed, without fetching it; raises the errors of ``result``."""
        __tracebackhide__ = True
        self._refuse_traced()
        entry = self._entry
        # The usual case, a value that is there, ends here: ``pw.wait`` asks a thousand futures of a step one by one.
        if entry is None or entry.array is None or entry.error is not None or self._consumed or not entry.resolved:
            self._wait(self._line())

    def array(self) -> jax.Array:
        """Return the live sharded ``jax.Array`` on the island's devices; raises the errors of ``result``.

        If it is kept with padding, the value is copied: JAX has no array whose parts are uneven.

        Operations on it launch on those devices in addition to the controller's own, unseen by its scheduler and its
        record. It stays as it is: a call that donates the future later works on a copy. Most code wants ``.result()``.
        """
        __tracebackhide__ = True
        array = self._live()
        # The user has the array from now on, so no node may take over its memory.
        if (entry := self._entry) is not None and self.aval.padded is None:
            entry.shared = True
        return array

    def _live(self) -> jax.Array:
        """Return the same as ``array`` to who drops it before the future may be donated."""
        __tracebackhide__ = True
        line = self._line()
        array = self._wait(line, needed=True)
        if isinstance(array, RemoteArray):
            raise UsageError(
                f"{self._name}.array(): the value lies on hosts of a cluster, whose devices are not this process's. "
                f"Fetch it, y.result(), or pass the future to a computation."
            )
        if isinstance(array, Abstract):
            if isinstance(self.value_holder, Future):
                return self.value_holder.array()
            raise _no_value(self, line)
        if self.aval.padded is not None:
            return context.call_outside(_COPY, (self,), {}).array()
        return array

    @property
    def is_remote(self) -> bool:
        """Whether its devices are those of hosts of a cluster, so that this process has no array of it."""
        return self._session.attach_options.cluster is not None

    def _line(self) -> str:
        """Return the user's line that asks for the value; empty where no recording would show it."""
        return source_lines.user_line() if self._session.recordings else ""

    def _fetch(self, line: str) -> Any:
        """Return the host value, needed by the user's ``line``."""
        __tracebackhide__ = True
        array = self._wait(line, needed=True)
        try:
            value = _to_host(array, self, line)
        except jax.errors.JaxRuntimeError as cause:  # its devices were lost since
            driver, where = self._session.driver_or_none, self._entry.placement if self._entry is not None else None
            at = f" ({line})" if line else ""
            found = driver.explain(where, f"{self._name} cannot be fetched{at}", cause) if driver and where else None
            if found is None:
                raise
            raise found from cause
        # A copy, since a view would keep the padding in memory.
        return value if self.aval.padded is None else value[tuple(map(slice, self.shape))].copy()

    def _refuse_traced(self) -> None:
        """Refuse a wait inside a trace, which has no values, and whose end other threads may wait for."""
        __tracebackhide__ = True
        trace = context.tracing()
        if trace is None:
            return
        line = f" ({here})" if (here := source_lines.user_line()) else ""
        raise UsageError(
            f"{trace.who} waits for the future {trace.captured(self)} from outside while it is traced{line}. Pass it "
            f"as an argument instead, or wait outside, before the call: value = y.result()."
        )

    def _dispatch(self) -> None:
        forks.refuse()
        self.check_usable()
        if self._flush is not None:
            self._flush()

    def _wait(self, line: str, needed: bool = False) -> Any:
        __tracebackhide__ = True
        self._refuse_traced()
        # A wait shows that a plain ``attach`` was meant and no ``with`` block: the replaced controller is closed.
        default_controller.close_replaced()
        self._dispatch()
        entry, driver = self._entry, self._session.driver_or_none
        if entry is None:
            raise lost(self._name)
        if needed:
            for recording, _ in self._session.recordings:
                recording.need(entry, line)
        if driver is not None and not entry.resolved:
            driver.event_loop.refuse_policies()
            tenant = tenant_scope.current()
            began = driver.reached_by(tenant.name if tenant is not None else "")
            # A driver that has stopped resolves nothing more; ``check`` then says why.
            driver.ended.wait(lambda: entry.resolved or driver.broken)
            driver.check()
            self._note("wait", began, line)
        self.check_there()
        if entry.array is None:
            raise lost(self._name)
        return entry.array

    def check_there(self) -> None:
        """Raise the known reason why there will be no value, without waiting; the errors are those of ``result``."""
        if self._entry is not None and (error := self._entry.error) is not None:
            # A copy: a traceback on the stored error would keep this future, and all it holds, alive.
            raise type(error)(*error.args) from error.__cause__
        if self._lost:
            raise lost(self._name)

    @property
    def _lost(self) -> bool:
        """Whether its devices were released, or its controller was reset, after it was computed."""
        return self._entry is not None and self._entry.array is None and self._entry.resolved

    def _note(self, kind: str, began: float, line: str) -> None:
        driver = self._session.driver_or_none
        if driver is not None:
            label = label_of(kind, self._name, bytes=self.aval.bytes if kind == "fetch" else 0, line=line)
            # In simulated time a thread can be ahead of the clock: its own calls take time as well.
            end = max(began, driver.clock())
            self._session.active_record().add(Row(label, began, end, quality=driver.quality))

    def __await__(self) -> Generator[Any, None, Any]:
        if self._session.attach_options.simulated is not None:
            # No other thread may wait in its place: simulated time advances when the client threads wait.
            return self._polled(self._line()).__await__()
        return asyncio.get_running_loop().run_in_executor(None, self._fetch, self._line()).__await__()

    async def _polled(self, line: str) -> Any:
        """Fetch the value inside an event loop, letting simulated time advance between the steps of other tasks.

        The order of tasks stays the loop's own, so that equal programs give equal traces.

        Returns:
            The host value.
        """
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

    def block_until_ready(self) -> Future:
        """Wait until it is computed, as ``jax.block_until_ready`` does for arrays.

        Returns:
            The future itself.
        """
        self.wait()
        return self


def made_anew(count: int) -> list[Future]:
    """Return futures that are bound next; spelled out, since a training step has hundreds of results."""
    return [_new(Future) for _ in range(count)]


_new: Callable[[type[Future]], Future] = object.__new__
_COPY = ProgramTracer(jnp.copy, Statics.of(jnp.copy, (), (), (), ()), "without padding")


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
        holder = future.value_holder
        if holder is None:
            raise _no_value(future, line)
        return holder.result() if isinstance(holder, Future) else np.array(holder)[()]
    if isinstance(array, RemoteArray):
        value: Any = array.host_value()
        future._note("fetch", began, line)
        return value
    if not isinstance(array, jax.Array):
        return np.array(array)[()]
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        # The private base array is only read; the public key_data would launch on the island from this thread.
        base = array._base_array if hasattr(array, "_base_array") else jax.random.key_data(array)
        data: Any = np.array(listed(base))
        value = jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
    else:
        value = np.array(listed(array))[()]  # a copy: the island's memory may be donated later
    future._note("fetch", began, line)
    return value
