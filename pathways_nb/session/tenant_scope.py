"""Tenants: the clients that calls are made for, so that several may share the devices in promised proportions.

The current tenant is a context variable, not a global: each thread and each asyncio task has its own. A stack holds the
tenants of nested blocks; it keeps no tokens, because a generator's block may end in another context than it began in.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import TracebackType
from weakref import WeakValueDictionary

from pathways_nb.errors import UsageError, is_number
from pathways_nb.runtime.driver import Driver
from pathways_nb.session import default_controller, interrupted
from pathways_nb.session.session import Session
from pathways_nb.util import forks
from pathways_nb.util.unique import Unique

_known: WeakValueDictionary[str, Tenant] = WeakValueDictionary()
_stack: ContextVar[tuple[Tenant | None, ...]] = ContextVar("pathways_clients", default=())
"""The tenants of this thread's or task's blocks, innermost last."""
_entered: ContextVar[tuple[tuple[Tenant, Driver], ...]] = ContextVar("pathways_entered", default=())
"""The drivers that this thread's or task's blocks have entered, innermost last."""
_blocks: Counter[str] = Counter()
"""The number of ``with`` blocks under way for each tenant name, in all threads and tasks."""
_lock = threading.RLock()
"""Held while a block begins or ends; never across a wait, since a collected generator may end a block anywhere."""


class Tenant(Unique):
    """A client of the controller: calls inside its ``with`` block are made for it, in that thread or asyncio task.

    The end of the block waits for its programs and closes the client: memory that it owns and nobody else holds is
    freed, so fetch what you need inside. An exception closes it at once. If several threads or tasks have a block of
    the same name, the last one to end does so. ``pw.client`` makes tenants.
    """

    _not_pickled = "cannot be pickled: this process's controller knows it. Write pw.client(name, ...) in the other one."

    def __init__(self, name: str, share: float, priority: float, memory: int):
        self.name, self.share, self.priority, self.memory = name, share, priority, memory

    def __enter__(self) -> Tenant:
        forks.refuse()
        session = default_controller.peek()
        driver = session.driver_or_none if session is not None else None
        with _lock:
            _blocks[self.name] += 1
        try:
            if driver is not None:
                driver.enter()
                _entered.set((*_entered.get(), (self, driver)))
            interrupted.enter(self)
            _stack.set((*_stack.get(), self))
        # An interrupt may come between these steps: what was done is undone.
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if forks.is_child():  # the block is still under way in the parent
            return _leave(self)
        session, is_last = None, False
        try:
            session = default_controller.peek()
            with _lock:
                _blocks[self.name] -= 1
                is_last = not _blocks[self.name]
            if kind is KeyboardInterrupt:
                interrupted.cancel(session)
            # After an error nothing is waited for: its programs are cancelled when the client closes.
            if session is not None and kind is None:
                session.flush()  # while it is the current tenant: its batched calls are made for it
                if is_last:
                    _wait_for(session, self.name)
        except KeyboardInterrupt:
            interrupted.cancel(session)
            raise
        finally:
            _leave(self)
            interrupted.leave(self)
            try:
                if is_last:
                    self._end(session, collected=kind is GeneratorExit)
            finally:
                _leave_driver(self)

    def _end(self, session: Session | None, collected: bool) -> None:
        """Close the client unless another block of its name has begun.

        A generator that is being collected may end its block in any thread, so it must not wait.
        """
        if session is not None and not collected:
            _give_up(session, self.name)
        with _lock:  # who begins a block from now on opens it again, after this
            if _blocks[self.name]:
                return
            del _blocks[self.name]
            wait = _close(session, self.name) if session is not None else None
        if wait is not None and not collected:
            wait()

    def acting(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which calls are made for this tenant; its end does not close the client."""
        return acting(self)

    def cancel(self) -> None:
        """Cancel its programs: none of their nodes is dispatched any more, and their results say so."""
        session = default_controller.get()
        session.flush()  # its batched calls open it
        if self.name in session.opened:
            session.driver.cancel(session.driver.runs_of(self.name))

    def close(self) -> None:
        """Cancel its programs and free what it owns and nobody else holds; its next call opens it again."""
        forks.refuse()
        session = default_controller.peek()
        if session is not None:
            _give_up(session, self.name)
            _close(session, self.name)()

    def __repr__(self) -> str:
        limit = f", memory {self.memory:.3g} bytes" if self.memory else ""
        return f"<client {self.name}: share {self.share:g}, priority {self.priority:g}{limit}>"


def client(name: str, share: float = 1.0, priority: float = 0.0, memory: float | None = None) -> Tenant:
    """Return a tenant of the current controller, to be used as ``with pw.client("a", share=2):``.

    Args:
        name: its name in the timeline; tenants of equal names are one client to the controller.
        share: its part of device time under ``policy="stride"``, relative to the shares of those that compete with it.
        priority: under ``policy="priority"``, higher goes first.
        memory: the most it may hold on any device, in bytes; its programs wait for it. ``None``: no limit of its own.

    Returns:
        The tenant.

    Raises:
        UsageError: the name is empty, the share is not positive, the priority is no number, or the memory is less than
            a byte.
    """
    if not isinstance(name, str) or not name:
        raise UsageError(f"client({name!r}): a name is needed, such as pw.client('alice').")
    if not is_number(share) or share <= 0:
        raise UsageError(f"client({name!r}, share={share!r}): a positive number is needed.")
    if not is_number(priority):
        raise UsageError(f"client({name!r}, priority={priority!r}): a number is needed; higher goes first.")
    if memory is not None and not (is_number(memory) and memory >= 1):
        raise UsageError(
            f"client({name!r}, memory={memory!r}): a number of bytes per device of at least 1 is needed, such as "
            f"memory=4e9."
        )
    made = _known[name] = Tenant(name, float(share), float(priority), int(memory or 0))
    return made


def tenant(name: str) -> Tenant:
    """Return the tenant made last under this name; a new one with a share of 1 if there is none."""
    return _known.get(name) or client(name)


@contextlib.contextmanager
def acting(tenant: Tenant | None) -> Iterator[None]:
    """Make the calls inside for ``tenant``; for no client in particular if it is ``None``."""
    _stack.set((*_stack.get(), tenant))
    try:
        yield
    finally:
        _leave(tenant)


def _leave(tenant: Tenant | None) -> None:
    """Remove the innermost block of a tenant from the stack; with generators it need not be the innermost of all."""
    stack = _stack.get()
    if tenant in stack:
        at = len(stack) - 1 - stack[::-1].index(tenant)
        _stack.set((*stack[:at], *stack[at + 1 :]))


def _leave_driver(tenant: Tenant) -> None:
    """Leave the driver that this block entered, which may no longer be the current one."""
    entered = _entered.get()
    at = next((at for at in range(len(entered) - 1, -1, -1) if entered[at][0] is tenant), None)
    if at is not None:
        _entered.set((*entered[:at], *entered[at + 1 :]))
        entered[at][1].leave()


def current() -> Tenant | None:
    """Return the tenant for which this thread or task makes calls, or ``None``."""
    return (_stack.get() or (None,))[-1]


def calling(session: Session, name: str = "") -> contextlib.AbstractContextManager[None]:
    """Return a context that registers a call of ``name`` by the current tenant; see ``Driver.calling``."""
    tenant, driver = current(), session.driver_or_none
    return contextlib.nullcontext() if driver is None else driver.calling("" if tenant is None else tenant.name, name)


def registered_name(session: Session) -> str:
    """Return the name of the current tenant, after opening it in the event loop if that does not know it yet."""
    tenant = current()
    if tenant is None:
        return ""
    # By identity: a new ``pw.client`` of this name may have another share, and the core must hear of it.
    if session.opened.get(tenant.name) is not tenant:
        session.driver.open(tenant.name, tenant.share, tenant.priority, tenant.memory)
        session.opened[tenant.name] = tenant
    return tenant.name


def cancel(session: Session, client: str | Tenant) -> None:
    """Cancel a client's programs; the name ``""`` stands for programs called outside any tenant.

    Raises:
        UsageError: no client of that name has called anything.
    """
    client = client.name if isinstance(client, Tenant) else client
    session.flush()
    if client and client not in session.opened:
        known = ", ".join(map(repr, session.opened)) or "none"
        raise UsageError(f"cancel({client!r}): no client of that name has called anything; there are: {known}.")
    session.driver.cancel(session.driver.runs_of(client))


def _close(session: Session, name: str) -> Callable[[], None]:
    """Cancel a tenant's programs and free what it alone holds.

    Takes no lock and does not wait.

    Returns:
        A function that waits until this is done.
    """
    driver = session.driver_or_none
    if session.opened.pop(name, None) is None or driver is None:
        return lambda: None
    return driver.close_client(name)


def _give_up(session: Session, name: str) -> None:
    """Drop the batched calls of a client that closes: dispatched later, they would open it again."""
    for _, batcher in tuple(session.recordings):
        batcher.give_up(name)


def _wait_for(session: Session, name: str) -> None:
    """Wait until no program of a client is under way."""
    driver = session.driver_or_none
    if driver is not None:
        driver.ended.wait(lambda: not driver.runs_of(name) or driver.broken)
