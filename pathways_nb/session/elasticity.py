"""Devices that are removed and added while programs run, and injected faults (Pathways, section 4.1).

Virtual slices are requests and not reservations of devices, so a slice on lost devices is placed anew. Every change
begins a new epoch: compiled plans name physical devices, and programs compile again at their next call.
"""

from __future__ import annotations

import operator
from typing import Any

from pathways_nb.errors import PlaceError, UsageError, is_index, is_number
from pathways_nb.plan.plan import Placement
from pathways_nb.runtime import islands as islands_module
from pathways_nb.runtime.faults import Fault
from pathways_nb.session import default_controller
from pathways_nb.session.session import Session
from pathways_nb.util import forks, limits
from pathways_nb.util.json_text import shortened
from pathways_nb.util.words import counted


def remove(session: Session, island: int, first: int, count: int | None) -> None:
    """Remove devices; see ``pw.Controller.remove``."""
    forks.refuse()
    with session.life:
        where = _checked(session, island, first, count)
        session.flush()
        session.resources.remove(where)
        session.driver.remove(where)
        session.begin_epoch()


def add(session: Session, devices: int | None, island: int | None) -> int:
    """Add an island, or return removed devices to one; see ``pw.Controller.add``.

    Returns:
        The island's index.
    """
    forks.refuse()
    with session.life:
        return _add(session, devices, island)


def _add(session: Session, devices: int | None, island: int | None) -> int:
    if island is not None:
        if devices is not None:
            raise UsageError(
                f"add(devices={devices}, island={island}): island {island} gets back its own devices, and devices= is "
                f"the number of a new island's. Write add(island={island}) or add(devices={devices})."
            )
        if not _is_island(session, island):
            raise PlaceError(f"add(island={island!r}): there are {session.size_text}, numbered from 0.")
        session.driver.restore(island, session.budgets[island])
        session.resources.restore(island)
    else:
        if session.attach_options.kind not in ("cpu", "sim"):
            raise UsageError(
                f"add(): {session!r} has all devices that JAX shows. Give back removed ones with add(island=…)."
            )
        count = session.islands[-1] if devices is None else devices
        _check_added(session, count)
        count = operator.index(count)  # a NumPy number could not be saved
        island = len(session.islands)
        budget = session.budgets[0]
        session.driver.add(_made(session, island, count), budget)
        session.islands, session.budgets = (*session.islands, count), (*session.budgets, budget)
        session.resources.add(count)
        if session.twin is not None:
            add(session.twin, count, None)
    session.begin_epoch()
    return island


def _check_added(session: Session, count: int) -> None:
    """Check that the devices could have been attached together; adding must not exceed what attaching refuses."""
    limits.check_counts("add", devices=count)
    check = limits.check_simulated if session.attach_options.kind == "sim" else limits.check_virtual
    check(f"add(devices={shortened(count)})", len(session.islands) + 1, sum(session.islands) + count)


def _made(session: Session, island: int, devices: int) -> Any:
    if session.attach_options.kind == "sim":
        return session.driver.attachment.one_more(devices)
    return islands_module.one_more(island, devices, session.attach_options.pin)


def _is_island(session: Session, island: object) -> bool:
    return is_index(island) and island in range(len(session.islands))


def _checked(session: Session, island: int, first: int, count: int | None) -> Placement:
    if not _is_island(session, island):
        raise PlaceError(f"remove(island={island!r}): there are {session.size_text}, numbered from 0.")
    have = session.islands[island]
    whole = is_index(first) and (count is None or is_index(count))
    number = have - first if whole and count is None else count
    if not whole or number is None or first < 0 or number < 1 or first + number > have:
        raise PlaceError(
            f"remove(island={island}, first={first!r}, count={count!r}): island {island} has "
            f"{counted(have, 'device')}, from 0 on."
        )
    return Placement(island, first, number)


def inject_fault(
    node: str | None = None,
    *,
    program: str | None = None,
    client: str | None = None,
    place: str | None = None,
    island: int | None = None,
    times: int = 1,
    after: int = 0,
    probability: float = 1.0,
    seed: int = 0,
) -> Fault:
    """Make launches of the current controller fail, to see what depends on them.

    Args:
        node: name of the nodes that fail; like the next three, it matches everything if left out.
        program: name of the program.
        client: name of the client.
        place: name of the virtual slice.
        island: index of the island.
        times: the most launches that fail.
        after: number of matching launches that succeed first.
        probability: with which each further matching launch fails.
        seed: of the generator that decides this.

    Returns:
        A ``Fault`` whose ``hits`` counts the failed launches. It ends with its ``with`` block or by ``cancel()``.

    Raises:
        UsageError: a number that means nothing, or an island that does not exist.
    """
    for option, name in {"node": node, "program": program, "client": client, "place": place}.items():
        if name is not None and not isinstance(name, str):
            raise UsageError(f"inject_fault({option}={name!r}): give the {option}'s name, a text such as 'left'.")
    counted = is_index(times) and times >= 1 and is_index(after) and after >= 0
    if not (counted and is_number(probability) and 0 < probability <= 1):
        raise UsageError(
            f"inject_fault(times={times!r}, after={after!r}, probability={probability!r}): times must be a whole "
            f"number of at least 1, after one of at least 0, and probability above 0 and at most 1."
        )
    session = default_controller.get()
    session.flush()  # what was called before is not meant
    if island is not None and not _is_island(session, island):
        raise UsageError(f"inject_fault(island={island!r}): there are {session.size_text}, numbered from 0.")
    fault = Fault(node, program, client, place, island, times, after, probability, seed, settle=session.settle)
    faults = session.driver.faults
    faults[:] = [*(known for known in faults if not known.over), fault]
    return fault
