"""Devices that are removed and added while programs run, and injected faults (Pathways, section 4.1).

Virtual slices are requests and not reservations of devices, so a slice on lost devices is placed anew. Every change
begins a new epoch: compiled plans name physical devices, and programs compile again at their next call.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator

from pathways_nb.errors import PlaceError, UsageError, is_index, is_number
from pathways_nb.plan.plan import Placement
from pathways_nb.runtime.faults import Fault
from pathways_nb.runtime.lowering.attachment import Island
from pathways_nb.session import default_controller
from pathways_nb.session.session import Session
from pathways_nb.trace.rows import Row, label_of
from pathways_nb.util import forks, limits
from pathways_nb.util.json_text import shortened
from pathways_nb.util.words import counted


def remove(session: Session, island: int, first: int, count: int | None) -> None:
    """Remove devices; see ``pw.Controller.remove``."""
    forks.refuse()
    with session.life:
        where = _checked(session, island, first, count)
        session.flush()  # what was called before is dispatched before the change
        _take_out(session, where)
        session.driver.remove(where)
        session.begin_epoch()


def withdraw(session: Session, island: int) -> None:
    """Let no further call use an island whose hosts died, before those under way fail: the next one waits for it."""
    _take_out(session, Placement(island, 0, session.islands[island]))
    session.begin_epoch()


def lose(session: Session, island: int) -> None:
    """Take an island out whose hosts died: what was only there is lost, and its places move or wait."""
    with _hold_life(session) as held:
        if held:
            where = Placement(island, 0, session.islands[island])
            _take_out(session, where)
            session.driver.remove(where)
            session.begin_epoch()


def give_back(session: Session, island: int) -> None:
    """Take an island in again that has new hosts."""
    with _hold_life(session) as held:
        if held:
            _add(session, None, island)


@contextlib.contextmanager
def _hold_life(session: Session) -> Iterator[bool]:
    """Hold a session's life unless it is being reset or closed, which wait for the thread that asks.

    Yields:
        Whether it is held.
    """
    driver = session.driver_or_none
    # Not ``with``: who closes the session holds its life and waits for this thread.
    while not (held := session.life.acquire(timeout=0.05)):
        if driver is None or session.driver_or_none is not driver:
            break
    try:
        yield held and driver is not None and session.driver_or_none is driver
    finally:
        if held:
            session.life.release()


def follow_loss(session: Session, where: Placement) -> None:
    """Take devices out that a shared controller has removed."""
    with session.life:
        _take_out(session, where)
        session.begin_epoch()


def follow_return(session: Session, island: int) -> None:
    """Take an island's devices in again that a shared controller has restored."""
    with session.life:
        _take_back(session, island)
        session.begin_epoch()


def follow_joining(session: Session, made: Island, budget: int) -> None:
    """Take in an island that a shared controller has added."""
    with session.life:
        _take_in(session, made, len(made.devices), budget)
        session.begin_epoch()


def add(session: Session, devices: int | None, island: int | None) -> int:
    """Add an island, or return removed devices to one; see ``pw.Controller.add``.

    Returns:
        The island's index.
    """
    forks.refuse()
    if island is not None:
        session.driver.wait_for_devices()  # else dead hosts would be taken in, before there are new ones
    with session.life:
        added = _add(session, devices, island)
    return session.driver.wait_for_island(added)  # without the lock, which whoever takes it in needs


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
        _take_back(session, island)
    else:
        if session.attach_options.kind not in ("cpu", "sim", "ray"):
            raise UsageError(
                f"add(): {session!r} has accelerators, of which no more can be made. Give back removed ones with "
                f"add(island=…), or attach others: pw.attach(…, islands=…)."
            )
        count = session.islands[-1] if devices is None else devices
        _check_added(session, count)
        count = operator.index(count)  # a NumPy number could not be saved
        island = len(session.islands)
        made = session.driver.attachment.one_more(count)
        if made is None:  # a shared controller has added it, and tells all kernels
            return island
        _take_in(session, made, count, session.budgets[0])
        if session.value_session is not None:
            add(session.value_session, count, None)
    session.begin_epoch()
    return island


def note_lost(session: Session) -> None:
    """Record which devices are lost, where a recording begins."""
    for where in session.resources.lost:
        _note(session, "lost", where)


def _take_out(session: Session, where: Placement) -> None:
    """Mark devices as lost, and record it unless it is known."""
    if where not in session.resources.lost:
        _note(session, "lost", where)
    session.resources.remove(where)


def _take_back(session: Session, island: int) -> None:
    """Mark all devices of an island as present, and record it if some were not."""
    if any(where.island == island for where in session.resources.lost):
        _note(session, "back", Placement(island, 0, session.islands[island]))
    session.resources.restore(island)


def _note(session: Session, kind: str, where: Placement) -> None:
    what = f"island {where.island}" if where.count == session.islands[where.island] else str(where)
    label = label_of(kind, f"{what} {kind}", island=where.island, device=where.first, devices=where.count)
    now = session.clock()
    session.note(Row(label, now, now, quality="exact"))


def _take_in(session: Session, made: Island, devices: int, budget: int) -> None:
    session.driver.add(made, budget)
    session.islands, session.budgets = (*session.islands, devices), (*session.budgets, budget)
    session.resources.add(devices)


def _check_added(session: Session, count: int) -> None:
    """Check that the devices could have been attached together; adding must not exceed what attaching refuses."""
    limits.check_counts("add", devices=count)
    check = limits.check_simulated if session.attach_options.kind == "sim" else limits.check_virtual
    check(f"add(devices={shortened(count)})", len(session.islands) + 1, sum(session.islands) + count)


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
    fault = Fault(node, program, client, place, island, times, after, probability, seed, wait_all=session.wait_all)
    faults = session.driver.faults
    # Those that are over go: each launch asks all that are left.
    faults[:] = [*(known for known in faults if not known.over), fault]
    return fault
