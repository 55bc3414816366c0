"""Which controller calls go to, and what ``attach`` replaced.

``pw.attach(...)`` makes a controller current. Whether the one before is let go or only set aside is known a moment
later: a ``with`` block sets it aside, anything else lets it go at the next use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pathways_nb.errors import NotAttachedError, PlaceError
from pathways_nb.util import forks

if TYPE_CHECKING:
    from collections.abc import Callable

    from pathways_nb.session.controller_handle import Controller


class _State:
    current: Controller | None = None
    replaced: tuple[Controller, Controller | None] | None = None
    """The newest controller and the one it replaced, until it is known whether a ``with`` block restores that."""
    default: Callable[[], Controller] | None = None


_state = _State()


def settle() -> None:
    """Let go of what a plain ``attach`` replaced."""
    if _state.replaced is not None and not forks.is_child():
        _, old = _state.replaced
        _state.replaced = None
        if old is not None:
            old.close()


def replace(controller: Controller) -> None:
    """Make a new controller current."""
    _state.replaced = (controller, _state.current)
    _state.current = controller


def peek() -> Controller | None:
    """The current controller, if one is attached and open; none in a forked child."""
    if forks.is_child():
        return None
    settle()
    controller = _state.current
    return None if controller is None or controller.closed else controller


def get() -> Controller:
    """The controller that calls go to.

    Raises:
        NotAttachedError: nothing is attached, or this is a forked child.
    """
    forks.refuse()
    controller = peek()
    if controller is None and _state.current is None and _state.default is not None:
        controller = _state.default()
    if controller is None:
        raise NotAttachedError(
            'nothing is attached: call pw.attach("auto") first (or pw.attach("cpu", islands=2, devices_per_island=4)).'
        )
    return controller


def allow_default(attach: Callable[[], Controller]) -> None:
    """From now on the first need attaches a default: what ``%load_ext pathways_nb`` does."""
    _state.default = attach


def enter(controller: Controller) -> None:
    """A ``with`` block begins: remember what to restore."""
    forks.refuse()
    if _state.replaced is not None and _state.replaced[0] is controller:
        outside = _state.replaced[1]
        if outside is not None and outside.shares_devices_with(controller):
            _state.replaced, _state.current = None, outside
            controller.close()
            raise PlaceError(
                f"with {controller!r}: its devices are held by the controller outside the block, which would be set "
                f"aside with all its results. Call pw.attach(...) without `with`, or attach other devices."
            )
        controller.scopes.append(outside)
        _state.replaced = None
        return
    settle()
    if controller is not _state.current or controller.closed:
        raise NotAttachedError(
            f"with {controller!r}: it is not the current controller, and its devices have been let go or set aside. "
            f"Use with pw.attach(...) as controller: to attach for a block."
        )
    controller.scopes.append(controller)  # attached before: leaving the block changes nothing


def leave(controller: Controller) -> None:
    """A ``with`` block ends: let its controller go and restore the one before."""
    if forks.is_child():  # it is still under way in the parent
        return
    settle()
    previous = controller.scopes.pop()
    if previous is not controller:
        for inner in (controller, _state.current):  # the second, if something was attached inside the block
            if inner is not None and inner is not previous:
                inner.close()
        _state.current = previous
