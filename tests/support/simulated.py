"""What the tests of simulated devices share: hosts that cost nothing, and two computations on two islands."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import pathways_nb as pw
from pathways_nb.cost.hardware.host_costs import HOST
from pathways_nb.cost.model import CostModel

X = jax.ShapeDtypeStruct((8,), jnp.float32)
COSTS = ("call", "message", "per_host", "launch", "notice", "device_launch")
NO_HOSTS = CostModel.of("tpu_v3", host=HOST.replace(**dict.fromkeys(COSTS, 0.0)))
"""A chip whose controller and hosts take no time: what is left is what nodes and transfers take."""

left = pw.virtual_slice(4, island=0, name="left")
right = pw.virtual_slice(4, island=1, name="right")


def twice(x: Any) -> Any:
    return x * 2


def plus(x: Any) -> Any:
    return x + 1


a = pw.jit(twice, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
b = pw.jit(plus, on=right, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
both = pw.program(lambda x: b(a(x)), name="both")


def settled(controller: pw.Controller) -> None:
    """Whatever has been called or dropped by now has come to its end."""
    controller.wait_all()
    controller.driver.event_loop.in_turn(lambda: None)


def is_empty(controller: pw.Controller) -> bool:
    """Nothing is under way, held, remembered, or still to happen."""
    settled(controller)
    driver: Any = controller.driver
    left_over = driver.runs, driver.entries, driver._virtual, driver._steps._expecting, driver.agenda.next
    return (
        not any(left_over)
        and not controller.machine.store.buffers
        and not (driver.event_loop._used or driver.event_loop._made)
    )
