"""What is interrupted: one small operation of each kind, and what must hold after it, interrupted or not."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import pathways_nb as pw
from pathways_nb.controller.invariants import check_invariants
from pathways_nb.program import context
from pathways_nb.session import tenant_scope
from tests.support.closeness import close
from tests.support.waiting import until_freed

PATIENCE = 60.0
"""Seconds after which a thread, or the end of all programs, counts as hung."""
M = np.arange(8, dtype=np.float32).reshape(4, 2)
Work = Callable[[], object]


class World:
    """Operations on two islands of two devices, and on simulated ones."""

    def __init__(self, simulated: bool = False):
        self.controller: Any = (
            pw.attach("sim", chip="tpu_v3", islands=2, devices_per_island=2)
            if simulated
            else pw.attach("cpu", islands=2, devices_per_island=2)
        )
        self.simulated, self._numbers = simulated, itertools.count(5)
        left, right = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)
        self.left, self.f, self.g = left, pw.jit(lambda x: x * 2 + 1, on=left), pw.jit(lambda x: x + 3, on=right)
        self.program = pw.program(lambda x: self.g(self.f(x)), name="both")
        self.takes = pw.program(lambda x: self.f(x), name="takes", donate_argnums=0)
        self.value = self.program(M)
        self.value.wait()
        self.operations: dict[str, Work] = {
            "submit": lambda: self.program(M),
            "queue": lambda: [self.program(self.value) for _ in range(20)],
            "wait": lambda: self.program(self.program(self.value)).wait(),
            "put": lambda: pw.put(M, on=left, shardings=pw.P("x")).wait(),
            "drop": lambda: [self.program(M) for _ in range(3)].clear(),
            "gather": self._gather,
            "donate": self._donate,
            "tenant": self._tenant,
            "trace": self._trace,
            "compile": self._compile,
        }
        if not simulated:
            self.operations |= {"fetch": lambda: self._right(self.program(M)), "pipeline": self._pipeline(left, right)}
            self.operations |= {"fsdp": self._fsdp(left)}
        for operation in self.operations.values():
            operation()
        self.held: set[int] = set()
        """Logical buffers that the operations keep for the next time."""
        driver = self.controller.driver
        driver.wait_idle(PATIENCE)
        gc.collect()
        driver.event_loop.in_turn(lambda: None)
        self.held |= set(self.controller.machine.store.buffers)

    def _right(self, y: Any) -> None:
        if self.simulated:
            y.wait()
        else:
            close(y.result(), M * 2 + 4)

    def _gather(self) -> None:
        with pw.record():
            y = self.g(self.f(M))
        self._right(y)

    def _donate(self) -> None:
        y = self.program(M)
        try:
            z = self.takes(y)
        except KeyboardInterrupt:
            with contextlib.suppress(pw.LostError):  # whichever of both came first, and never another value
                self._right(y)
            raise
        if not self.simulated:
            close(z.result(), M * 4 + 9)

    def _tenant(self) -> None:
        with pw.client("ann"):
            self._right(self.program(M))

    def _trace(self) -> object:
        pw.program(lambda x: self.g(self.f(x)), name="traced").graph(M)
        return jax.make_jaxpr(lambda x: x + 1)(M)

    def _compile(self) -> object:
        number = float(next(self._numbers))
        return pw.program(lambda x: self.f(jnp.tanh(x * number)), name="fresh")(M)

    @staticmethod
    def _pipeline(left: Any, right: Any) -> Work:
        pipe = pw.pipeline(
            [lambda w, x: jnp.tanh(x @ w)] * 2, on=[left, right], schedule="1f1b", microbatches=2,
            loss=lambda y, t: jnp.mean((y - t) ** 2),
        )  # fmt: skip
        optimizer = optax.sgd(0.1)
        step, weights = pipe.step(optimizer), [np.eye(2, dtype=np.float32)] * 2
        state = pipe.init(optimizer, weights)
        expected = step(weights, state, M, M)[2].result()
        return lambda: close(step(weights, pipe.init(optimizer, weights), M, M)[2], expected)

    @staticmethod
    def _fsdp(place: Any) -> Work:
        params = {"w": np.eye(2, dtype=np.float32)}
        step = pw.fsdp(lambda p, x: jnp.mean((x @ p["w"]) ** 2), params, on=place, optimizer=optax.sgd(0.1))
        expected = step(*step.init(params), M)[2].result()
        return lambda: close(step(*step.init(params), M)[2], expected)

    # ---- what must hold

    def check_next(self) -> None:
        """Check that the next call of this thread, and that of another one, is right."""
        assert context.tracing() is None, "a trace is left open"
        assert tenant_scope.current() is None, "a client is left current"
        assert not self.controller.recordings, "a recording is left open"
        self._right(self.program(M))
        found: list[BaseException] = []

        def call() -> None:
            try:
                self._right(self.program(M))
            except BaseException as error:
                found.append(error)

        other = threading.Thread(target=call, daemon=True)
        other.start()
        other.join(PATIENCE)
        assert not other.is_alive(), "a call of another thread hangs"
        assert not found, found

    def check_rest(self) -> None:
        """Check that nothing runs on and nothing is held that was not held before."""
        driver = self.controller.driver
        assert driver.wait_idle(PATIENCE), f"programs {sorted(driver.runs)} never end"
        machine = self.controller.machine

        def rests() -> bool:
            driver.event_loop.in_turn(lambda: None)
            return not machine.calls and set(machine.store.buffers) <= self.held

        until_freed(rests)  # a thread may let go a moment later
        check_invariants(machine)
