"""Tenants: who a call is made for, so that several may share the devices as they were promised."""

from __future__ import annotations

from contextvars import ContextVar, Token
from types import TracebackType
from weakref import WeakValueDictionary

from pathways_nb import current
from pathways_nb.errors import UsageError

_known: WeakValueDictionary[str, Tenant] = WeakValueDictionary()
_now: ContextVar[Tenant | None] = ContextVar("pathways_client", default=None)


class Tenant:
    """A client of the controller; calls inside its ``with`` block are made for it, in that thread or asyncio task.

    Made by ``pw.client``.
    """

    def __init__(self, name: str, share: float, priority: float):
        self.name, self.share, self.priority = name, share, priority
        self._tokens: list[Token[Tenant | None]] = []

    def __enter__(self) -> Tenant:
        self._tokens.append(_now.set(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _now.reset(self._tokens.pop())

    def cancel(self) -> None:
        """Give up its programs: nothing more of them is dispatched, and their results say so."""
        current.get().cancel(self.name)

    def __repr__(self) -> str:
        return f"<client {self.name}: share {self.share:g}, priority {self.priority:g}>"


def client(name: str, share: float = 1.0, priority: float = 0.0) -> Tenant:
    """A tenant of the current controller: use it as ``with pw.client("a", share=2):``.

    Args:
        name: what it is called in the timeline; two tenants of one name are the same to the controller.
        share: of device time under ``policy="stride"``, beside the shares of those who compete with it.
        priority: under ``policy="priority"``, higher goes first.

    Raises:
        UsageError: no name, or a share that is not positive.
    """
    if not isinstance(name, str) or not name:
        raise UsageError(f"client({name!r}): a name is needed, such as pw.client('alice').")
    if not 0 < share < float("inf"):
        raise UsageError(f"client({name!r}, share={share!r}): a positive number is needed.")
    made = _known[name] = Tenant(name, float(share), float(priority))
    return made


def tenant(name: str) -> Tenant:
    """The tenant of this name as it was made last; a new one with a share of 1 if there is none."""
    return _known.get(name) or client(name)


def now() -> Tenant | None:
    """The tenant for whom calls are made here."""
    return _now.get()
