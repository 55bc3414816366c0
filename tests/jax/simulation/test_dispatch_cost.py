"""What a simulated dispatch costs: a message, the hosts it is for, and each client's own thread."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import pathways_nb as pw
from pathways_nb.cost.hardware.host_costs import HOST
from pathways_nb.cost.model import CostModel

X = jax.ShapeDtypeStruct((), jnp.float32)
NOTHING = dict.fromkeys(("call", "message", "per_host", "launch", "notice", "device_launch"), 0.0)


def attached(**costs: float) -> pw.Controller:
    """Eight hosts of four devices; a host costs what is said and nothing else."""
    model = CostModel.of("tpu_v3", host=HOST.replace(**NOTHING | costs))
    return pw.attach("sim", chip=model, devices_per_island=32, devices_per_host=4)


@pytest.mark.parametrize(("devices", "hosts"), [(4, 1), (5, 2), (8, 2), (32, 8)])
def test_a_message_costs_for_each_host_that_it_is_for(devices: int, hosts: int) -> None:
    program = pw.program(pw.work(1.0, on=pw.virtual_slice(devices)))
    with attached(message=0.5, per_host=1e-2):
        run = program.run(X)
    assert run.events.of_kind("enqueue")["start"] == pytest.approx([0.5 + hosts * 1e-2])


def test_hosts_of_two_places_count_once() -> None:
    one, whole = pw.work(1.0, on=pw.virtual_slice(4)), pw.work(1.0, on=pw.virtual_slice(32))
    with attached(per_host=1e-2):
        run = pw.program(lambda x: whole(one(x)), name="both").run(X)
    assert run.events.of_kind("enqueue")["start"] == pytest.approx([8e-2])


def test_clients_call_side_by_side_each_in_its_own_time() -> None:
    work = pw.work(1e-3, on=pw.virtual_slice(32))
    program = pw.program(lambda x: work(x), name="one")
    with attached(call=1.0), pw.record() as run:
        for _ in range(2):
            for name in ("ann", "bob"):
                with pw.client(name).acting():
                    program(X)
    found = run.events.of_kind("enqueue")
    for name in ("ann", "bob"):
        assert found["start"][found["client"] == name] == pytest.approx([1.0, 2.0])
