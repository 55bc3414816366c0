"""What an interrupt cancels: the calls of its thread since its cell, or its outermost block, began."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import re
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax
import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from jax._src import api, core, tree_util
from jax._src.interpreters import pxla

import pathways_nb as pw
from pathways_nb.session import interrupted
from pathways_nb.util import interrupts
from tests.conftest import settled
from tests.support.waiting import dispatchers, held_back, interrupt_when, is_waited_for, stand_still

M = np.full((4, 4), 0.5, np.float32)


@pytest.fixture
def step(left: pw.VirtualSlice) -> pw.Program:
    """A program of one computation, compiled."""
    f = pw.jit(lambda m: m + 1, on=left)
    program = pw.program(lambda m: f(m), name="step")
    program(M).wait()
    return program


@pytest.fixture(autouse=True)
def python_handles_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    """IPython, whose cells are watched."""
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance()
    interrupted.watch_cells()
    yield made
    interrupted._begun.cell = None
    interrupts.rendered = None
    InteractiveShell.clear_instance()


def outcomes(ys: list[pw.Future]) -> tuple[int, int]:
    """How many calls were cancelled, and how many have run."""
    cancelled = 0
    for y in ys:
        try:
            np.testing.assert_array_equal(y.result(), M + 1)
        except pw.CancelledError:
            cancelled += 1
    return cancelled, len(ys) - cancelled


def test_a_cell_that_is_interrupted_cancels_what_it_queued_and_nothing_else(controller, step, shell, capsys) -> None:
    theirs: list[pw.Future] = []

    def other() -> None:
        with pw.client("ann").acting():
            theirs.extend(step(M) for _ in range(10))

    before: list[pw.Future] = []
    shell.user_ns.update(step=step, M=M, before=before, ys=[], stand_still=stand_still)
    with held_back(dispatchers(controller)[0]):
        shell.run_cell("before += [step(M) for _ in range(3)]")
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with interrupt_when(lambda: bool(shell.user_ns.get("done"))), contextlib.redirect_stdout(io.StringIO()):
            ended = shell.run_cell("ys += [step(M) for _ in range(50)]; done = True; stand_still()")
        # Before the execution: between two statements, where the interrupt may arrive as well.
        assert isinstance(ended.error_in_exec or ended.error_before_exec, KeyboardInterrupt)
    settled(controller)
    assert outcomes(before) == (0, 3)
    assert outcomes(theirs) == (0, 10)
    assert outcomes(shell.user_ns["ys"]) == (50, 0)
    assert capsys.readouterr().err == "interrupted: 50 queued calls of this cell were cancelled.\n"
    assert outcomes([step(M)]) == (0, 1)


def test_an_interrupt_between_two_statements_cancels_as_well(controller, step, shell, capsys, monkeypatch) -> None:
    class Compiler:
        """Compiles statements; the user interrupts it when it has compiled the second."""

        def __init__(self, first: Any):
            self.first = first

        def __getattr__(self, name: str) -> Any:
            return getattr(self.first, name)

        def __call__(self, *arguments: Any) -> Any:
            code = self.first(*arguments)
            if "raises" in code.co_names:
                error = KeyboardInterrupt()
                error._render_traceback_ = interrupts.rendered  # type: ignore[attr-defined]
                raise error
            return code

    shell.user_ns.update(step=step, M=M, ys=[])
    monkeypatch.setattr(shell, "compile", Compiler(shell.compile))
    with held_back(dispatchers(controller)[0]), contextlib.redirect_stdout(io.StringIO()) as printed:
        shell.run_cell("before = step(M)")  # at which the dispatcher waits
        ended = shell.run_cell("ys += [step(M) for _ in range(5)]\nraises")
    assert isinstance(ended.error_before_exec, KeyboardInterrupt)
    settled(controller)
    assert outcomes(shell.user_ns["ys"]) == (5, 0)
    assert "interrupted: 5 queued calls of this cell were cancelled.\n" in capsys.readouterr().err
    assert "KeyboardInterrupt" in printed.getvalue()


def test_outside_a_cell_the_outermost_block_counts(controller, step, capsys) -> None:
    ys: list[pw.Future] = []
    with held_back(dispatchers(controller)[0]):
        outside = [step(M) for _ in range(3)]
        with pytest.raises(KeyboardInterrupt), pw.client("bob"):  # noqa: PT012
            ys += [step(M) for _ in range(4)]
            with pw.record():
                ys += [step(M) for _ in range(5)]
                raise KeyboardInterrupt
    settled(controller)
    assert outcomes(outside) == (0, 3)
    assert outcomes(ys) == (9, 0)
    assert capsys.readouterr().err == "interrupted: 9 queued calls of this block were cancelled.\n"


def test_calls_on_devices_are_told_without_counting_what_was_not_queued(left, step, capsys) -> None:
    begun, let_go = threading.Event(), threading.Event()

    def hold(m: Any) -> Any:
        begun.set()
        let_go.wait()
        return m

    last = pw.jit(lambda m: jax.pure_callback(hold, jax.ShapeDtypeStruct(M.shape, M.dtype), m), on=left)
    both = pw.program(lambda m: last(step(m)))
    with pytest.raises(KeyboardInterrupt), pw.client("bob"):  # noqa: PT012
        both(M)
        begun.wait()
        raise KeyboardInterrupt
    let_go.set()
    assert capsys.readouterr().err == "interrupted: 1 call already on devices will end.\n"


def places_shown(text: str) -> list[str]:
    """The files and cells of a traceback of IPython, in order, without folders."""
    found = re.findall(r"^(?:File .*[/\\](\w+\.py):\d+|(Cell In)\[)", text, re.M)
    return [file or cell for file, cell in found]


def test_a_traceback_of_an_interrupt_shows_the_users_lines(controller, left, step, shell, capsys) -> None:
    shell.colors = "nocolor"
    shell.user_ns.update(pw=pw, left=left, step=step, M=M, stop=lambda: signal.raise_signal(signal.SIGINT))
    shell.run_cell("f = pw.jit(lambda m: stop() or m, on=left)\nf(M)")
    shown = capsys.readouterr().out
    assert places_shown(shown) == ["Cell In", "Cell In", "test_interrupted_cells.py"]
    assert shown.rstrip().endswith("KeyboardInterrupt:")
    with held_back(dispatchers(controller)[0]), interrupt_when(lambda: is_waited_for(controller)):
        shell.run_cell("step(M).result()")
    settled(controller)
    assert places_shown(capsys.readouterr().out) == ["Cell In"]
    shell.run_cell("import json\njson.loads('1', object_hook=None, parse_int=lambda _: stop())")
    assert places_shown(capsys.readouterr().out)[1:3] == ["__init__.py", "decoder.py"]


def test_a_traceback_of_our_errors_shows_the_users_lines_without_libraries(controller, left, shell, capsys) -> None:
    shell.colors = "nocolor"
    shell.user_ns.update(pw=pw, jax=jax, left=left, M=M)
    shell.run_cell("pw.attach(devices=4)")
    shown = capsys.readouterr().out
    assert places_shown(shown) == ["Cell In"]
    assert "UsageError: pw.attach(devices=4): there is no option 'devices'. Did you mean 'devices_per_island'" in shown
    shell.run_cell("f = pw.jit(lambda m: m, on=left, in_shardings=pw.P(('x', 'y')))")
    assert places_shown(capsys.readouterr().out) == ["Cell In"]
    # Through JAX, whose frames lie between.
    shell.run_cell("f = pw.jit(lambda m: m, on=left)\njax.grad(lambda m: f(m).sum())(M)")
    shown = capsys.readouterr().out
    assert places_shown(shown) == ["Cell In", "Cell In"], shown
    assert shown.rstrip().splitlines()[-1].startswith("UsageError: ")
    # What caused it stands above it.
    shell.run_cell("def bad(m):\n    raise ValueError('no')\npw.host(bad, on=left, out=M)(M).result()")
    shown = capsys.readouterr().out
    assert places_shown(shown) == ["Cell In"], shown
    assert [line.split(":")[0] for line in shown.splitlines() if line.startswith(("ValueError:", "NodeError:"))] == [
        "ValueError", "NodeError"
    ]  # fmt: skip
    assert sys.last_value.__traceback__.tb_next.tb_next is not None, "a debugger finds all entries"


def test_gathered_calls_are_counted(controller, left, capsys) -> None:
    f = pw.jit(lambda m: m * 3, on=left)
    with pytest.raises(KeyboardInterrupt), pw.record():  # noqa: PT012
        ys = [f(M) for _ in range(3)]
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "interrupted: 3 queued calls of this block were cancelled.\n"
    with pytest.raises(pw.CancelledError, match="was cancelled before it was dispatched"):
        ys[0].result()


def test_a_trace_of_jax_that_was_left_open_is_closed(left) -> None:
    """An interrupt where JAX begins to close a trace leaves it open, and a put would be traced."""
    traces: list[Any] = []
    jax.make_jaxpr(lambda x: traces.append(core.trace_ctx.trace) or x)(M)
    core.trace_ctx.set_trace(traces[0])
    np.testing.assert_array_equal(pw.put(M, on=left).result(), M)
    assert core.trace_state_clean()


def test_an_interrupt_waits_while_jax_closes_a_trace() -> None:
    def come(frame: FrameType, event: str, arg: object) -> None:
        if frame.f_code.co_qualname == "SetCurrentTraceContextManager.__exit__":
            sys.settrace(None)
            interrupts._handle(signal.SIGINT, frame)

    def trace() -> None:
        sys.settrace(come)
        jax.make_jaxpr(lambda x: x + 1)(M)
        stand_still()  # where it comes at the latest

    with pytest.raises(KeyboardInterrupt):
        trace()
    assert core.trace_state_clean()


def test_an_interrupt_of_users_code_and_of_a_wait_comes_at_once() -> None:
    def frame_of(code: str, filename: str) -> FrameType:
        names: dict[str, Any] = {"frame": sys._getframe}
        exec(compile(code, filename, "exec"), names)
        found: FrameType = names["found"]
        return found

    left = "class A:\n def __exit__(self, *_): global found; found = frame()\nA().__exit__()"
    assert interrupts.is_undivided(frame_of(left, contextlib.__file__))
    assert not interrupts.is_undivided(frame_of(left, "a user's cell"))


def _swallowing(module: Any) -> set[str]:
    """Return the names of a module's functions that go on after whatever is raised in them: ``except:``."""
    found = set()
    for function in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(function, ast.FunctionDef):
            handlers = [node for node in ast.walk(function) if isinstance(node, ast.ExceptHandler) and not node.type]
            if any(not isinstance(last, ast.Raise) for handler in handlers for last in handler.body[-1:]):
                found.add(function.name)
    return found


@pytest.mark.parametrize("module", [api, core, pxla, tree_util])
def test_a_function_of_jax_that_swallows_an_interrupt_is_known(module: Any) -> None:
    around = {"check_jaxpr", "evaluate_shape", "canonicalize_slice", "_maybe_get_and_check_out_shardings"}
    assert _swallowing(module) - around - interrupts._NAMES == set()
