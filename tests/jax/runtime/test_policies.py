"""Whatever a policy chooses, programs of several clients over two islands compute what they say, and all of them end."""

from __future__ import annotations

import random
import threading
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pathways_nb as pw
from tests.conftest import settled
from tests.support.closeness import close

CLIENTS = ("ann", "bob", "eve")
v = np.arange(8, dtype=np.float32)


class Whim:
    """A policy that takes any gang; the same ones again for the same seed and the same questions."""

    def __init__(self) -> None:
        self.choose, self.asked = random.Random(0), 0

    def __call__(self, ready: Any, state: Any) -> Any:
        self.asked += 1
        return self.choose.choice(ready)


def programs() -> list[tuple[Any, Any]]:
    """Programs that cross between two islands, and what each computes."""
    left, right = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)
    options: dict[str, Any] = {"in_shardings": pw.P("x"), "out_shardings": pw.P("x")}
    double = pw.jit(lambda v: v * 2, on=left, **options)
    centre = pw.jit(lambda v: v - jnp.mean(v), on=left, **options)  # an all-reduce
    add = pw.jit(lambda v: v + 1, on=right, **options)
    return [
        (pw.program(lambda v: add(double(v)), name="there"), lambda v: v * 2 + 1),
        (pw.program(lambda v: double(add(centre(v))), name="and back"), lambda v: (v - v.mean() + 1) * 2),
        (
            pw.program(lambda v: (add(add(double(v))), centre(add(v))), name="both"),
            lambda v: (v * 2 + 2, v - v.mean()),
        ),
    ]


@pytest.mark.parametrize("dispatch", ["parallel", "sequential"])
def test_any_choice_keeps_programs_right(dispatch: str, watchdog: None) -> None:
    whim = Whim()
    with pw.attach("cpu", islands=2, devices_per_island=2, dispatch=dispatch, policy=whim) as here:
        known = programs()
        for program, _ in known:
            pw.get(program(v))

        def work(client: str, numbers: list[int], failures: list[BaseException]) -> None:
            try:
                with pw.client(client):
                    results = [(i, known[number], known[number][0](v + i)) for i, number in enumerate(numbers)]
                    for i, (_, expected), result in results:
                        close(_flat(pw.get(result)), _flat(expected(v + i)), 1e-6)
            except BaseException as error:
                failures.append(error)

        @given(st.integers(0, 2**32), st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=3, max_size=3))
        @settings(max_examples=15, deadline=None)
        def check(seed: int, calls: list[list[int]]) -> None:
            whim.choose.seed(seed)
            failures: list[BaseException] = []
            threads = [
                threading.Thread(target=work, args=(client, numbers, failures), daemon=True)
                for client, numbers in zip(CLIENTS, calls, strict=True)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert failures == []
            settled(here)

        check()
    assert whim.asked > 0


def _flat(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
