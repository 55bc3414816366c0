"""Tenants: who a call is made for, so that several may share the devices as they were promised."""

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
from pathways_nb.session import default_controller
from pathways_nb.session.session import Session
from pathways_nb.util import forks
from pathways_nb.util.unique import Unique

_known: WeakValueDictionary[str, Tenant] = WeakValueDictionary()
_stack: ContextVar[tuple[Tenant | None, ...]] = ContextVar("pathways_clients", default=())
"""For whom calls are made in this thread or task, innermost last. No tokens: a block may end in another context."""
_entered: ContextVar[tuple[tuple[Tenant, Driver], ...]] = ContextVar("pathways_entered", default=())
"""The drivers that this thread's or task's blocks have entered, innermost last."""
_blocks: Counter[str] = Counter()
"""How many ``with`` blocks of each tenant are under way, in all threads and tasks."""
_lock = threading.RLock()
"""Held while a block begins or ends. Nobody waits meanwhile: a collected generator may end one in any thread."""


class Tenant(Unique):
    """A client of the controller; calls inside its ``with`` block are made for it, in that thread or asyncio task.

    The end of the block waits for its programs and closes it: what it owns and nobody else holds is freed, so fetch
    what you need inside. An exception closes it at once. Where several threads or tasks have a block of the same name,
    all that is so of the last one to end. Made by ``pw.client``.
    """

    _not_pickled = "cannot be pickled: this process's controller knows it. Write pw.client(name, ...) in the other one."

    def __init__(self, name: str, share: float, priority: float, memory: int):
        self.name, self.share, self.priority, self.memory = name, share, priority, memory

    def __enter__(self) -> Tenant:
        forks.refuse()
        with _lock:
            _blocks[self.name] += 1
        _stack.set((*_stack.get(), self))
        session = default_controller.peek()
        if session is not None and (driver := session.driver_or_none) is not None:
            driver.enter()
            _entered.set((*_entered.get(), (self, driver)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if forks.is_child():  # the block is still under way in the parent
            return _leave(self)
        session = default_controller.peek()
        with _lock:
            _blocks[self.name] -= 1
            is_last = not _blocks[self.name]
        try:
            if session is not None and kind is None:
                session.flush()
                if is_last:
                    _wait_for(session, self.name)
        finally:
            _leave(self)
            try:
                if is_last:
                    self._end(session, collected=kind is GeneratorExit)
            finally:
                _leave_driver(self)

    def _end(self, session: Session | None, collected: bool) -> None:
        """Close it, unless another block has begun; a collected generator may end anywhere, and must not wait."""
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
        """Calls inside are made for it; unlike its own ``with`` block, the end leaves it open."""
        return acting(self)

    def cancel(self) -> None:
        """Give up its programs: nothing more of them is dispatched, and their results say so."""
        session = default_controller.get()
        session.flush()
        if self.name in session.opened:
            cancel(session, self)

    def close(self) -> None:
        """Give up its programs, and free what it owns and nobody else holds; its next call opens it again."""
        forks.refuse()
        session = default_controller.peek()
        if session is not None:
            _give_up(session, self.name)
            _close(session, self.name)()

    def __repr__(self) -> str:
        limit = f", memory {self.memory:.3g} bytes" if self.memory else ""
        return f"<client {self.name}: share {self.share:g}, priority {self.priority:g}{limit}>"


def client(name: str, share: float = 1.0, priority: float = 0.0, memory: float | None = None) -> Tenant:
    """A tenant of the current controller: use it as ``with pw.client("a", share=2):``.

    Args:
        name: what it is called in the timeline; two tenants of one name are the same to the controller.
        share: of device time under ``policy="stride"``, beside the shares of those who compete with it.
        priority: under ``policy="priority"``, higher goes first.
        memory: the most it may hold on any device, in bytes; its programs wait for it. ``None``: as much as there is.

    Raises:
        UsageError: no name, a share that is not positive, a priority that is no number, or less than a byte of memory.
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
    """The tenant of this name as it was made last; a new one with a share of 1 if there is none."""
    return _known.get(name) or client(name)


@contextlib.contextmanager
def acting(tenant: Tenant | None) -> Iterator[None]:
    """Calls inside are made for ``tenant``, or for nobody in particular."""
    _stack.set((*_stack.get(), tenant))
    try:
        yield
    finally:
        _leave(tenant)


def _leave(tenant: Tenant | None) -> None:
    """The innermost block of a tenant has ended; a collected generator's need not be the innermost of all."""
    stack = _stack.get()
    if tenant in stack:
        at = len(stack) - 1 - stack[::-1].index(tenant)
        _stack.set((*stack[:at], *stack[at + 1 :]))


def _leave_driver(tenant: Tenant) -> None:
    """Leave the driver that this block entered, which may be another one's by now."""
    entered = _entered.get()
    at = next((at for at in range(len(entered) - 1, -1, -1) if entered[at][0] is tenant), None)
    if at is not None:
        _entered.set((*entered[:at], *entered[at + 1 :]))
        entered[at][1].leave()


def current() -> Tenant | None:
    """The tenant for whom calls are made here."""
    return (_stack.get() or (None,))[-1]


def calling(session: Session) -> contextlib.AbstractContextManager[None]:
    """Call something for the tenant of here: see ``Driver.calling``."""
    tenant, driver = current(), session.driver_or_none
    return contextlib.nullcontext() if driver is None else driver.calling("" if tenant is None else tenant.name)


def registered_name(session: Session) -> str:
    """The name of the tenant for whom calls are made here, whom the controller's engine has been told of."""
    tenant = current()
    if tenant is None:
        return ""
    if session.opened.get(tenant.name) is not tenant:
        session.driver.open(tenant.name, tenant.share, tenant.priority, tenant.memory)
        session.opened[tenant.name] = tenant
    return tenant.name


def cancel(session: Session, client: str | Tenant) -> None:
    """Give up a client's programs; the name ``""`` means those of no client."""
    client = client.name if isinstance(client, Tenant) else client
    session.flush()
    if client and client not in session.opened:
        known = ", ".join(map(repr, session.opened)) or "none"
        raise UsageError(f"cancel({client!r}): no client of that name has called anything; there are: {known}.")
    session.driver.cancel(session.driver.runs_of(client))


def _close(session: Session, name: str) -> Callable[[], None]:
    """A tenant is gone: its programs are given up, and what it alone holds is freed.

    Takes no lock. Who wants to wait until it is so calls what this returns.
    """
    driver = session.driver_or_none
    if session.opened.pop(name, None) is None or driver is None:
        return lambda: None
    return driver.close_client(name)


def _give_up(session: Session, name: str) -> None:
    """Forget what is gathered for a client that closes: sent later, it would open it again."""
    for _, batcher in tuple(session.recordings):
        batcher.give_up(name)


def _wait_for(session: Session, name: str) -> None:
    """Wait until nothing of a client is under way."""
    driver = session.driver_or_none
    if driver is not None:
        driver.ended.wait(lambda: not driver.runs_of(name) or driver.broken)
