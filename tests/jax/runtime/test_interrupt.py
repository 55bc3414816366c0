"""An interrupt waits for no device; what is launched finishes as draining, the rest is cancelled, all stays usable.

Launches are under way until the test sees their ends, so whoever waited for one would wait for ever.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

import pathways_nb as pw
from pathways_nb.runtime.driver import QUEUED
from pathways_nb.runtime.local.launch_watcher import IN_FLIGHT
from pathways_nb.session.calls import client
from pathways_widgets.figures import output
from tests.conftest import settled
from tests.support.waiting import LIMIT, Unseen, interrupt_when, is_waited_for, launched, stand_still, until

matrix = np.full((8, 8), 0.01, np.float32)


@pytest.fixture
def step(left):
    """A program of one computation."""
    f = pw.jit(lambda m: jnp.tanh(m @ m), on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    program = pw.program(lambda m: f(m), name="step")
    pw.wait(program(matrix))
    return program


@pytest.fixture(autouse=True)
def python_handles_interrupts():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


CANCELLED = r"^.+ of step, run \d+, was cancelled before it was dispatched. Call the program again to compute it\.$"


class Cell:
    """A block in a record that is interrupted as soon as ``ready(cell)``, while all it launched is under way."""

    def __init__(self, controller: pw.Controller, step: pw.Program):
        self.controller, self.step = controller, step
        self.ys: list[pw.Future] = []
        self.is_at_its_end = False

    def call(self, times: int) -> None:
        """Call the program, each time with the result before."""
        for _ in range(times):
            self.ys.append(self.step(self.ys[-1] if self.ys else matrix))

    def interrupted(self, body: Callable[[], Any], ready: Callable[[], bool]) -> pw.Run:
        """The run of a block with this body, after its interrupt."""
        with Unseen(self.controller):
            with interrupt_when(ready), pytest.raises(KeyboardInterrupt), pw.record() as run:  # noqa: PT012
                body()
                self.is_at_its_end = True
            assert self.controller.recordings == []
            assert run.unfinished(), "nobody has waited for the devices"
        return run

    def has_launched(self) -> bool:
        """Whether something is on the devices of island 0."""
        return launched(self.controller) > 0

    def is_waiting(self) -> bool:
        """Whether the block's thread waits for devices, which have something to do."""
        return is_waited_for(self.controller) and self.has_launched()

    def waits_at_its_end(self) -> bool:
        """Whether the end of the block waits for devices."""
        return self.is_at_its_end and self.is_waiting()

    def check(self, run: pw.Run) -> None:
        """What was launched has finished, the rest was cancelled, and the next call works."""
        settled(self.controller)
        finished = 0
        for y in self.ys:
            try:
                assert y.result().shape == matrix.shape
                finished += 1
            except pw.CancelledError as error:
                assert re.match(CANCELLED, str(error)), error
                assert "failed" in repr(y)
        assert 0 < finished < len(self.ys)
        status = list(run.events.of_kind("compute")["status"])
        assert status == ["draining"] * finished
        assert finished <= IN_FLIGHT + 1, "and one that waited for room"
        assert np.isfinite(self.step(matrix).result()).all()


@pytest.fixture
def cell(controller, step) -> Cell:
    return Cell(controller, step)


def test_an_interrupt_while_the_end_of_the_block_waits(cell) -> None:
    cell.check(cell.interrupted(lambda: cell.call(QUEUED - 4), cell.waits_at_its_end))


def test_an_interrupt_while_submitting_waits_for_room(controller, cell) -> None:
    cell.check(cell.interrupted(lambda: cell.call(2 * QUEUED), cell.is_waiting))
    assert len(cell.ys) == QUEUED


def test_an_interrupt_while_a_value_is_waited_for(cell) -> None:
    def body() -> None:
        cell.call(QUEUED - 4)
        cell.ys[-1].result()

    cell.check(cell.interrupted(body, cell.is_waiting))
    assert not cell.is_at_its_end


def test_an_interrupt_of_plain_python(cell) -> None:
    standing = threading.Event()

    def body() -> None:
        cell.call(QUEUED - 4)
        standing.set()
        stand_still()

    cell.check(cell.interrupted(body, lambda: standing.is_set() and cell.has_launched()))


def test_an_interrupt_with_loose_calls_gathered_and_the_queue_full(cell, left) -> None:
    """The gathered call is new and the queue is full: neither compiling it nor waiting for room may hold the cell."""
    fresh = pw.jit(lambda m: jnp.cos(m) + 0.875, on=left)
    loose: list[pw.Future] = []

    def body() -> None:
        cell.call(QUEUED)
        loose.append(fresh(matrix))
        stand_still()

    run = cell.interrupted(body, lambda: bool(loose) and cell.has_launched())
    cell.check(run)
    assert not run.events.of_kind("compile")
    with pytest.raises(pw.CancelledError):
        loose[0].result()


def test_what_depends_on_something_cancelled_is_cancelled_too(cell, right) -> None:
    on_right = pw.jit(lambda m: m + 1, on=right)
    later: list[pw.Future] = []

    def body() -> None:
        cell.call(QUEUED - 4)
        later.append(on_right(cell.ys[-1]))
        pw.wait(later)

    cell.check(cell.interrupted(body, cell.is_waiting))
    with pytest.raises(pw.CancelledError, match="cancelled before it was dispatched"):
        later[0].result()


def test_a_program_called_afterwards_on_a_cancelled_future_fails_the_same(controller, cell, step) -> None:
    cell.interrupted(lambda: cell.call(QUEUED - 4), cell.waits_at_its_end)
    settled(controller)
    with pytest.raises(pw.CancelledError, match="cancelled before it was dispatched"):
        step(cell.ys[-1]).result()
    assert np.isfinite(step(matrix).result()).all()


def test_an_interrupt_with_sequential_dispatch(controller) -> None:
    with pw.attach("cpu", islands=2, devices_per_island=4, dispatch="sequential") as here:
        left, right = pw.virtual_slice(4, island=0), pw.virtual_slice(4, island=1)
        f, g = pw.jit(lambda m: jnp.tanh(m @ m), on=left), pw.jit(lambda m: m + 1, on=right)
        both = pw.program(lambda m: g(f(m)))
        pw.wait(both(matrix))
        cell = Cell(here, both)
        cell.interrupted(lambda: cell.call(QUEUED - 4), lambda: cell.is_at_its_end and is_waited_for(here))
        settled(here)
        for y in cell.ys:
            with pytest.raises(pw.CancelledError):
                y.result()
        assert np.isfinite(both(matrix).result()).all()


def test_an_interrupt_outside_a_record_cancels_nothing(controller, step) -> None:
    with Unseen(controller):
        y = step(step(step(step(matrix))))
        with interrupt_when(lambda: is_waited_for(controller)), pytest.raises(KeyboardInterrupt):
            y.result()
    assert np.isfinite(y.result()).all()


def test_a_second_interrupt_is_an_interrupt_too(controller, step) -> None:
    for _ in range(2):
        cell, standing = Cell(controller, step), threading.Event()

        def body(cell: Cell = cell, standing: threading.Event = standing) -> None:
            cell.call(20)
            until(cell.has_launched)
            standing.set()
            stand_still()

        cell.interrupted(body, standing.is_set)
    settled(controller)
    assert np.isfinite(step(matrix).result()).all()


def test_loose_calls_that_are_still_gathered_never_go_out(controller, left) -> None:
    @pw.jit(on=left, donate_argnums=0)
    def double(x: jax.Array) -> jax.Array:
        return 2 * x

    x = pw.put(np.arange(4.0), on=left)
    with pytest.raises(KeyboardInterrupt), pw.record() as run:  # noqa: PT012
        y = double(x)
        raise KeyboardInterrupt
    assert not run.programs
    with pytest.raises(pw.CancelledError, match=r"^double was cancelled before it was dispatched\. Call it again"):
        y.result()
    np.testing.assert_array_equal(double(x).result(), 2 * np.arange(4.0))  # x was not given away


def test_a_cancelled_result_names_its_own_node(cell, step, left) -> None:
    @pw.jit(on=left)
    def first(m: jax.Array) -> jax.Array:
        return m + 1

    @pw.jit(on=left)
    def second(m: jax.Array) -> jax.Array:
        return m * 2

    both = pw.program(lambda m: second(first(m)), name="both")
    pw.wait(both(matrix))

    def body() -> None:
        cell.call(1)
        cell.ys += [both(step(matrix)) for _ in range(30)]

    cell.interrupted(body, lambda: cell.is_at_its_end and is_waited_for(cell.controller))
    with pytest.raises(pw.CancelledError, match=r"^second of both, run \d+, was cancelled"):
        cell.ys[-1].result()


@pytest.fixture
def notebook(monkeypatch):
    """Figures are made as in a notebook, and shown nowhere."""
    InteractiveShell.clear_instance()
    InteractiveShell.instance()
    monkeypatch.setattr(output, "display", lambda bundle, **_: None)
    yield
    InteractiveShell.clear_instance()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_the_last_picture_shows_what_was_under_way(controller, left, notebook, monkeypatch, error) -> None:
    """The end of the block waits until what is on devices has ended."""
    monkeypatch.setattr(client, "_DRAIN", LIMIT)
    work = pw.work(1e-5, on=left, name="short")
    program = pw.program(lambda x: work(work(x)), name="two")
    program.run(matrix[0])
    with Unseen(controller) as unseen, pytest.raises(error), pw.record(show="timeline") as run:  # noqa: PT012
        program(matrix[0])
        until(lambda: len(run.events.of_kind("enqueue")) > 0)
        unseen.see_when_waited_for()
        raise error
    assert run.is_over
    assert "2 launches" in run.view.summary
    assert run.view.summary == run.summary_line()


def test_a_second_interrupt_ends_the_wait_for_the_last_picture(controller, left, notebook, monkeypatch) -> None:
    program = pw.program(pw.work(1e-5, on=left, name="short"), name="one")
    program.run(matrix[0])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with Unseen(controller):
        with pytest.raises(KeyboardInterrupt), pw.record(show="timeline") as run:  # noqa: PT012
            program(matrix[0])
            monkeypatch.setattr(controller.driver.ended, "wait", interrupt)
            raise KeyboardInterrupt
        monkeypatch.undo()
    assert run.finished
    assert run.view.summary
    assert not controller.recordings
