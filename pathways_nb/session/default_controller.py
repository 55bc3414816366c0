"""The current controller, and the one that ``pw.attach`` replaced.

``pw.attach(...)`` makes a controller current. Whether the previous one is to be closed is known only a moment later:
``with pw.attach(...)`` sets it aside and restores it at the end of the block, a plain call closes it. Therefore the
previous controller is kept until the next use of either shows which of the two was meant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pathways_nb.cost.hardware.topology import Topology
from pathways_nb.cost.model import CostModel
from pathways_nb.errors import NotAttachedError, PlaceError
from pathways_nb.runtime.sim.sim_driver import SimDriver
from pathways_nb.session.session import Session
from pathways_nb.util import forks, interrupts


class _Current:
    current: Session | None = None
    replaced: tuple[Session, Session | None] | None = None
    """The newest controller and the one it replaced, until it is known whether a ``with`` block restores the latter."""
    default: Callable[[], Session] | None = None


_state = _Current()


def close_replaced() -> None:
    """Close the controller that a plain ``attach`` replaced."""
    if _state.replaced is not None and not forks.is_child():
        _, old = _state.replaced
        _state.replaced = None
        if old is not None:
            old.close()


def replace(session: Session) -> None:
    """Make a new controller current."""
    _state.replaced = (session, _state.current)
    _state.current = session


def peek() -> Session | None:
    """Return the current controller; ``None`` if none is attached and open, or this process is a forked child."""
    if forks.is_child():
        return None
    close_replaced()
    session = _state.current
    return None if session is None or session.closed else session


def get() -> Session:
    """Return the controller that calls go to.

    Raises:
        NotAttachedError: nothing is attached, or this process is a forked child.
    """
    forks.refuse()
    interrupts.guard()
    session = peek()
    if session is None and _state.current is None and _state.default is not None:
        session = _state.default()
    if session is None:
        raise NotAttachedError(
            'nothing is attached: call pw.attach("auto") first (or pw.attach("cpu", islands=2, devices_per_island=4)).'
        )
    return session


def cost_model() -> CostModel | None:
    """Return the cost model of the current controller's devices if they are simulated, else ``None``."""
    driver = get().driver
    return driver.model if isinstance(driver, SimDriver) else None


def topology(model: CostModel) -> Topology | None:
    """Return the topology of the current controller's islands if they are simulated with this model, else ``None``."""
    session = peek()
    driver = None if session is None else session.driver
    if not isinstance(driver, SimDriver) or driver.model is not model:
        return None
    return driver.attachment.islands[0].topology


def accelerator() -> Any:
    """Return the first device of the attached accelerators; ``None`` if none are attached."""
    session = peek()
    if session is None or session.attach_options.kind not in ("gpu", "tpu"):
        return None
    return session.driver.attachment.islands[0].devices[0]


def allow_default(attach: Callable[[], Session]) -> None:
    """Let the first call attach default devices, as ``%load_ext pathways_nb`` does.

    Args:
        attach: makes the default controller.
    """
    _state.default = attach


def enter(session: Session) -> None:
    """Begin a ``with`` block on a controller and remember which one to restore.

    Raises:
        PlaceError: its devices are held by the controller outside the block, which would have to be set aside.
        NotAttachedError: it is not the current controller, or it is closed.
    """
    forks.refuse()
    if _state.replaced is not None and _state.replaced[0] is session:
        outside = _state.replaced[1]
        if outside is not None and outside.shares_devices_with(session):
            _state.replaced, _state.current = None, outside
            session.close()
            raise PlaceError(
                f"with {session!r}: its devices are held by the controller outside the block, which would be set "
                f"aside with all its results. Call pw.attach(...) without `with`, or attach other devices."
            )
        session.scopes.append(outside)
        _state.replaced = None
        return
    close_replaced()
    if session is not _state.current or session.closed:
        raise NotAttachedError(
            f"with {session!r}: it is not the current controller, and its devices have been let go or set aside. "
            f"Use with pw.attach(...) as controller: to attach for a block."
        )
    session.scopes.append(session)  # attached before: leaving the block changes nothing


def leave(session: Session) -> None:
    """End a ``with`` block: close its controller and restore the previous one."""
    if forks.is_child():  # it is still under way in the parent
        return
    close_replaced()
    previous = session.scopes.pop()
    if previous is not session:
        for inner in (session, _state.current):  # the second, if something was attached inside the block
            if inner is not None and inner is not previous:
                inner.close()
        _state.current = previous
