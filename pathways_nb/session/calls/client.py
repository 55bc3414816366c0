"""Recordings and values: ``pw.record``, ``pw.profile``, ``pw.put``, ``pw.get`` and ``pw.wait``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax

from pathways_nb.controller.turns import ContendedTurns, shares_line
from pathways_nb.errors import UsageError
from pathways_nb.plan.memory_categories import VALUES, check
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program import context
from pathways_nb.program.emit import module_of
from pathways_nb.results import last_runs
from pathways_nb.results.named_runs import expression_of
from pathways_nb.results.run import Run
from pathways_nb.runtime.local.launch_op_sources import launch_ops
from pathways_nb.runtime.local.profiler import Profiler, ordinals
from pathways_nb.session import default_controller, elasticity, interrupted
from pathways_nb.session.calls import stored_values
from pathways_nb.session.calls.batching import CallBatcher
from pathways_nb.session.calls.link_models import link_model
from pathways_nb.session.futures import Future
from pathways_nb.session.session import Session
from pathways_nb.session.status import turns_of
from pathways_nb.session.tenant_scope import calling
from pathways_nb.trace.exact_stamps import make_exact, matched
from pathways_nb.util import forks

_DRAIN = 5.0
"""Seconds that an interrupted cell waits for its last picture."""


def record(
    name: str = "run", show: str | Sequence[str] = (), source: str = ""
) -> contextlib.AbstractContextManager[Run]:
    """Record what runs inside the block; see ``pw.record``, which adopts jitted functions as well.

    Args:
        name: of the run.
        show: the views to display live.
        source: the code of the block, kept with the run.

    Returns:
        A context manager that yields the run.
    """
    return _recorded(name, show, source, None)


def profile(
    name: str = "profile", show: str | Sequence[str] = (), source: str = ""
) -> contextlib.AbstractContextManager[Run]:
    """Record like ``pw.record``, with exact stamps from JAX's profiler, which slows CPU devices down by 3 to 21 %.

    After the block, ``run.stamps`` says how many launches have exact stamps and how far off the estimated ones were.
    ``run.ops`` has the single ops that ran inside these launches.

    Args:
        name: of the run.
        show: the views to display live; see ``pw.record``.
        source: the code of the block, kept with the run.

    Returns:
        A context manager that yields the run.

    Raises:
        UsageError: JAX's profiler is in use already.
    """
    return _recorded(name, show, source, Profiler(time.perf_counter))


@contextlib.contextmanager
def _recorded(name: str, show: str | Sequence[str], source: str, profiler: Profiler | None) -> Iterator[Run]:
    session = default_controller.get()
    session.flush()  # what was called before the block is no part of it
    about = {"options": session.attach_options.as_dict(), "source": source, "hbm": list(session.budgets)}
    run = Run(name, session.islands, about=about)
    if profiler is not None:
        run.launched = {}
        session.wait_all()  # launches of earlier calls that it saw would be taken for launches of this block
        profiler.start()
    # A profile around this recording sees its launches, too.
    elif session.recordings:
        run.launched = session.recordings[-1][0].launched
    display = None
    try:
        display = _display(run, show)
        run.record.origin = session.clock()  # the time axis begins when the picture is up, not while it is made
        with _carried_out(session, run, CallBatcher(session)):
            yield run
        if profiler is not None:
            _read(profiler, session, run)
        if run.on_display:
            run.last_time = last_runs.exchange(run)
    except BaseException:
        if run.on_display:
            last_runs.pass_over(run)
        raise
    finally:
        run.launched = None
        if session.recordings:
            session.recordings[-1][0].absorb(run)  # of a recording around this one
        run.finished = True
        if display is not None:
            display.stop()
        if profiler is not None:
            profiler.abandon()  # whatever happened: JAX allows one profile at a time


@contextlib.contextmanager
def _carried_out(session: Session, run: Run, batcher: CallBatcher) -> Iterator[None]:
    """Dispatch what the block asks for as part of ``run``, and wait for it at the end, whatever has happened."""
    entry = (run, batcher)
    entered = session.driver
    _mark(session)
    before, book = turns_of(session), entered.event_loop.logbook
    beginning = book.begin() if book is not None else None
    # In simulated time the block's thread is a client until the end: time must not advance while it prepares a call.
    entered.enter()
    try:
        interrupted.enter(run)
        session.recordings.append(entry)
        elasticity.note_lost(session)
        try:
            yield
        except KeyboardInterrupt:
            interrupted.cancel(session)
            raise
        finally:
            batcher.flush()  # this one's, whatever the block has done to the others
        _wait_for(session, run)
    except KeyboardInterrupt:
        interrupted.cancel(session)
        _drain(session, run)
        raise
    except BaseException:
        # Also after an error the record is complete only when what was submitted has ended.
        with contextlib.suppress(KeyboardInterrupt):
            _wait_for(session, run)
        raise
    finally:
        try:
            _mark(session)
        finally:
            # ``reset`` inside the block has removed it already.
            if entry in session.recordings:
                session.recordings.remove(entry)
                if book is not None and beginning is not None:
                    run.kept_log = book.end(beginning)
                run.islands, run.about["hbm"] = session.islands, list(session.budgets)  # some may have been added
                run.link_model = link_model(session)
                turns = {name: one.since(before.get(name, ContendedTurns())) for name, one in turns_of(session).items()}
                if shares := shares_line(turns, session.is_shared):
                    run.about["shares"] = shares
            interrupted.leave(run)
            entered.leave()


def _drain(session: Session, run: Run) -> None:
    """After an interrupt, wait a while for what is on devices if a picture shows it; a further interrupt ends that."""
    driver = session.driver_or_none
    if driver is not None and any(shown.view is not None for shown, _ in session.recordings):
        with contextlib.suppress(KeyboardInterrupt):
            driver.ended.wait(lambda: run.is_over or driver.broken, _DRAIN)


def _read(profiler: Profiler, session: Session, run: Run) -> None:
    driver = session.driver_or_none
    if driver is None:
        return
    run.note = "reading the profile"
    try:
        devices = ordinals(driver.attachment.islands)
        match = matched(run.record, profiler.stop(), devices, module_of)
        if profiler.unread:
            run.about["unread"] = dict(profiler.unread)
        run.stamps = make_exact(run.record, match)
        run.ops = launch_ops(run.record, match, devices, run.launched or {})
    finally:
        run.note = ""


def _display(run: Run, show: str | Sequence[str]) -> Any:
    if not show:
        return None
    from pathways_widgets.figures.live_display import LiveDisplay  # late: most scripts need no pictures

    display = LiveDisplay(run, show, called=partial(expression_of, run))
    if not display.views:
        return None
    display.start()
    run.on_display, run.view = display.is_live, display.figure
    return display


def _mark(session: Session) -> None:
    """Close the memory levels held now in the record, where a recording begins or ends."""
    if (driver := session.driver_or_none) is not None and not forks.is_child():
        driver.memory_events.mark()


def _wait_for(session: Session, run: Run) -> None:
    driver = session.driver_or_none
    if driver is not None and not forks.is_child():  # where nothing would ever end
        driver.ended.wait(lambda: run.is_over or driver.broken)
        driver.check()


def get(tree: Any) -> Any:
    """Wait for every future in ``tree``.

    Returns:
        The tree with host values (NumPy) in place of futures.
    """
    return jax.tree.map(lambda leaf: leaf.result() if isinstance(leaf, Future) else leaf, tree)


def wait(tree: Any) -> Any:
    """Wait for every future in ``tree`` to be computed.

    Returns:
        ``tree``, unchanged.
    """
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, Future):
            leaf.wait()
    return tree


def put(
    tree: Any,
    on: VirtualSlice = None,  # type: ignore[assignment]  # left out, it is an error that names the places
    shardings: Any = None,
    category: str = VALUES,
) -> Any:
    """Place every array of ``tree`` on a virtual slice.

    Args:
        tree: arrays or numbers from anywhere.
        on: the virtual slice.
        shardings: a ``pw.P``, or a prefix tree of them; replicated if left out.
        category: what the memory is held for, such as ``"parameters"`` or ``"optimizer"``, for
            ``run.memory(by="category")``.

    Returns:
        The tree with a future for each array.

    Raises:
        ShardingError: a spec does not fit.
        UsageError: a leaf is not an array, ``on`` is no virtual slice, or there is no such category.
    """
    check(category, f"put(category={category!r})")
    if not isinstance(on, VirtualSlice):
        raise UsageError(stored_values.no_place(on))
    session = default_controller.get()
    context.close_left_open()
    with calling(session):
        session.flush()
        return stored_values.put(session, tree, on, shardings, category)
