"""An interrupt returns within a second; what is launched finishes as draining, the rest is cancelled, all stays usable."""

from __future__ import annotations

import re
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_widgets import live, output

matrix = np.full((256, 256), 0.01, np.float32)


@pytest.fixture
def slow(left):
    """A program of one computation of some tens of milliseconds."""
    f = pw.jit(
        lambda m: jax.lax.fori_loop(0, 60, lambda i, x: jnp.tanh(x @ x), m),
        on=left,
        in_shardings=pw.P("x"),
        out_shardings=pw.P("x"),
    )
    program = pw.program(lambda m: f(m), name="slow")
    pw.wait(program(matrix))
    return program


def interrupt_after(seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.daemon = True
    timer.start()
    return timer


@pytest.fixture(autouse=True)
def python_handles_interrupts():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


CANCELLED = r"^.+ of slow, run \d+, was cancelled before it was dispatched. Call the program again to compute it\.$"


def interrupted(slow, body) -> tuple[pw.Run, list[pw.Future], float]:
    """Run ``body(ys)`` in a record, interrupt it; the run, its futures, and the seconds from interrupt to return."""
    ys: list[pw.Future] = []
    stamps: list[float] = []
    runs: list[pw.Run] = []

    def interrupt() -> None:
        stamps.append(time.monotonic())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]

    threading.Timer(0.3, interrupt).start()
    with pytest.raises(KeyboardInterrupt), pw.record() as run:  # noqa: PT012
        runs.append(run)
        body(ys)
    return runs[0], ys, time.monotonic() - stamps[0]


def check(controller, run, ys, took, quiet, slow) -> None:
    """What point 7 promises."""
    assert took < 1.0
    assert controller.recordings == []
    quiet(controller)
    finished, cancelled = 0, 0
    for y in ys:
        try:
            assert y.result().shape == matrix.shape
            finished += 1
        except pw.CancelledError as error:
            assert re.match(CANCELLED, str(error)), error
            assert "failed" in repr(y)
            cancelled += 1
    assert cancelled > 0
    assert finished > 0
    assert finished + cancelled == len(ys)
    status = list(run.events.of_kind("compute")["status"])
    assert status.count("failed") == 0
    assert 1 <= status.count("draining") <= 26
    assert len(status) == finished
    again = slow(matrix)
    assert np.isfinite(again.result()).all()


def test_an_interrupt_while_the_end_of_the_block_waits(controller, slow, quiet) -> None:
    def body(ys):
        y = matrix
        for _ in range(60):
            y = slow(y)
            ys.append(y)

    check(controller, *interrupted(slow, body), quiet, slow)


def test_an_interrupt_while_submitting_waits_for_room(controller, slow, quiet) -> None:
    def body(ys):
        y = matrix
        while True:
            y = slow(y)
            ys.append(y)

    check(controller, *interrupted(slow, body), quiet, slow)


def test_an_interrupt_while_a_value_is_waited_for(controller, slow, quiet) -> None:
    def body(ys):
        y = matrix
        for _ in range(60):
            y = slow(y)
            ys.append(y)
        y.result()

    check(controller, *interrupted(slow, body), quiet, slow)


def test_an_interrupt_of_plain_python(controller, slow, quiet) -> None:
    def body(ys):
        y = matrix
        for _ in range(60):
            y = slow(y)
            ys.append(y)
        while True:
            time.sleep(0.01)

    check(controller, *interrupted(slow, body), quiet, slow)


def test_an_interrupt_with_loose_calls_gathered_and_the_queue_full(controller, slow, left, quiet) -> None:
    """The gathered call is new and the queue is full: neither compiling it nor waiting for room may hold the cell."""
    fresh = pw.jit(lambda m: jnp.cos(m) + time.monotonic(), on=left)
    loose: list[pw.Future] = []

    def body(ys):
        y = matrix
        for _ in range(64):
            y = slow(y)
            ys.append(y)
        loose.append(fresh(matrix))
        while True:
            time.sleep(0.01)

    run, ys, took = interrupted(slow, body)
    check(controller, run, ys, took, quiet, slow)
    with pytest.raises(pw.CancelledError):
        loose[0].result()


def test_what_depends_on_something_cancelled_is_cancelled_too(controller, slow, right, quiet) -> None:
    on_right = pw.jit(lambda m: m + 1, on=right)
    later: list[pw.Future] = []

    def body(ys):
        y = matrix
        for _ in range(60):
            y = slow(y)
            ys.append(y)
        later.append(on_right(y))
        pw.wait(later)

    run, ys, took = interrupted(slow, body)
    check(controller, run, ys, took, quiet, slow)
    with pytest.raises(pw.CancelledError, match="cancelled before it was dispatched"):
        later[0].result()


def test_a_program_called_afterwards_on_a_cancelled_future_fails_the_same(controller, slow, quiet) -> None:
    def body(ys):
        y = matrix
        for _ in range(60):
            y = slow(y)
            ys.append(y)

    _, ys, _ = interrupted(slow, body)
    quiet(controller)
    with pytest.raises(pw.CancelledError, match="cancelled before it was dispatched"):
        slow(ys[-1]).result()
    assert np.isfinite(slow(matrix).result()).all()


def test_an_interrupt_with_sequential_dispatch(controller, quiet) -> None:
    with pw.attach("cpu", islands=2, devices_per_island=4, dispatch="sequential") as here:
        left, right = pw.virtual_slice(4, island=0), pw.virtual_slice(4, island=1)
        loop = lambda m: jax.lax.fori_loop(0, 30, lambda i, x: jnp.tanh(x @ x), m)  # noqa: E731
        f, g = pw.jit(loop, on=left), pw.jit(loop, on=right)
        both = pw.program(lambda m: g(f(m)))
        pw.wait(both(matrix))
        ys = []
        timer = interrupt_after(0.2)
        with pytest.raises(KeyboardInterrupt), pw.record():  # noqa: PT012
            y = matrix
            for _ in range(60):
                y = both(y)
                ys.append(y)
        began = time.monotonic()
        timer.join()
        quiet(here)
        assert time.monotonic() - began < 5
        with pytest.raises(pw.CancelledError):
            ys[-1].result()
        assert np.isfinite(both(matrix).result()).all()


def test_an_interrupt_outside_a_record_cancels_nothing(controller, slow) -> None:
    y = slow(slow(slow(slow(matrix))))
    timer = interrupt_after(0.01)
    try:
        y.result()
        timer.join()
        time.sleep(0.05)
    except KeyboardInterrupt:
        pass
    assert np.isfinite(y.result()).all()


@pytest.mark.slow
def test_a_second_interrupt_is_an_interrupt_too(controller, slow, quiet) -> None:
    def body(ys):
        for _ in range(20):
            ys.append(slow(matrix))

    for _ in range(2):
        interrupted(slow, lambda ys: (body(ys), time.sleep(30)))
    quiet(controller)
    assert np.isfinite(slow(matrix).result()).all()


def test_loose_calls_that_are_still_gathered_never_go_out(controller, left, quiet) -> None:
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


def test_a_cancelled_result_names_its_own_node(controller, slow, left, quiet) -> None:
    @pw.jit(on=left)
    def first(m: jax.Array) -> jax.Array:
        return m + 1

    @pw.jit(on=left)
    def second(m: jax.Array) -> jax.Array:
        return m * 2

    both = pw.program(lambda m: second(first(m)), name="both")
    pw.wait(both(matrix))
    _, ys, _ = interrupted(slow, lambda ys: ys.extend([slow(matrix), *(both(slow(matrix)) for _ in range(30))]))
    with pytest.raises(pw.CancelledError, match=r"^second of both, run \d+, was cancelled"):
        ys[-1].result()


@pytest.fixture
def notebook(monkeypatch):
    """Figures are made as in a notebook, and shown nowhere."""
    live.InteractiveShell.clear_instance()
    live.InteractiveShell.instance()
    monkeypatch.setattr(output, "display", lambda bundle, **_: None)
    yield
    live.InteractiveShell.clear_instance()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_the_last_picture_shows_what_was_under_way(controller, left, notebook, error) -> None:
    work = pw.work(0.3, on=left, name="long")
    program = pw.program(lambda x: work(work(x)), name="two")
    program.run(matrix[0])
    with pytest.raises(error), pw.record(show="timeline") as run:  # noqa: PT012
        program(matrix[0])
        while not len(run.events.of_kind("enqueue")):
            time.sleep(1e-3)
        raise error
    assert run.is_over
    assert "2 launches" in run.view.summary
    assert run.view.summary == run.summary_line()


def test_a_second_interrupt_ends_the_wait_for_the_last_picture(controller, left, notebook, monkeypatch) -> None:
    program = pw.program(pw.work(0.3, on=left, name="long"), name="one")
    program.run(matrix[0])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), pw.record(show="timeline") as run:  # noqa: PT012
        program(matrix[0])
        monkeypatch.setattr(controller.driver.ended, "wait", interrupt)
        raise KeyboardInterrupt
    monkeypatch.undo()
    assert run.finished
    assert run.view.summary
    assert not controller.recordings
