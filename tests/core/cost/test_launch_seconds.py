"""Seconds of a launch: closed forms of single operations, order and bands, and steps that were measured on a GPU."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

import pathways_nb as pw
from pathways_datasets import launch_constants, recorded, recorded_files
from pathways_nb.cost.hlo.exchanges import HloExchange
from pathways_nb.cost.hlo.hlo_schedule import LaunchAction, LaunchSchedule, schedule_of
from pathways_nb.cost.hlo.hlo_text import parse
from pathways_nb.cost.hlo.hlo_work import OpWork
from pathways_nb.cost.launch.constants import constants
from pathways_nb.cost.launch.launch_timing import launch_seconds
from pathways_nb.cost.launch.op_seconds import LaunchPlace, exchange_seconds, seconds_of
from pathways_nb.errors import UsageError

H100, V5P = pw.chip("gpu_h100_sxm"), pw.chip("tpu_v5p")


def hosts(devices: int, per_host: int = 8) -> LaunchPlace:
    """GPUs in hosts."""
    return LaunchPlace(H100, [{"process": n // per_host} for n in range(devices)], per_host)


def exchange(kind: str, groups: np.ndarray, size: float = 1e9) -> HloExchange:
    """A collective of some bytes."""
    return HloExchange(kind, size, groups, "bf16", 1)


@pytest.mark.parametrize(("kind", "times"), [("all-gather", 1), ("reduce-scatter", 1), ("all-reduce", 2)])
def test_a_collective_inside_a_host_takes_what_each_gpu_receives(kind, times):
    known = constants("gpu_h100_sxm")
    found = exchange_seconds(exchange(kind, np.arange(8).reshape(1, 8)), hosts(8), known)
    assert found == pytest.approx(known.latency + times * 7 / 8 * 1e9 / known.link_bw)


def test_a_collective_over_hosts_takes_their_network_and_latency_for_each_doubling():
    known = constants("gpu_h100_sxm")
    found = exchange_seconds(exchange("all-gather", np.arange(32).reshape(1, 32)), hosts(32), known)
    assert found == pytest.approx(known.latency + 2 * known.node_latency + 31 / 32 * 1e9 / known.node_bw)


def test_groups_of_one_gpu_a_host_share_its_network():
    known = constants("gpu_h100_sxm")
    strided = np.arange(32).reshape(4, 8).T
    found = exchange_seconds(exchange("all-gather", strided), hosts(32), known)
    assert found == pytest.approx(known.latency + 2 * known.node_latency + 3 / 4 * 1e9 / (known.node_bw / 8))


def test_a_group_of_one_exchanges_nothing():
    assert (
        exchange_seconds(exchange("all-reduce", np.arange(4).reshape(4, 1)), hosts(4), constants("gpu_h100_sxm")) == 0
    )


@pytest.mark.parametrize(("kind", "links", "times"), [("all-gather", 2, 1), ("all-reduce", 6, 2)])
def test_on_a_torus_an_all_reduce_of_all_chips_uses_every_axis(kind, links, times):
    known = constants("tpu_v5p")
    places = [{"process": 0, "coords": (x, y, z), "slice": 0} for x in range(2) for y in range(2) for z in range(2)]
    found = exchange_seconds(exchange(kind, np.arange(8).reshape(1, 8)), LaunchPlace(V5P, places, 4), known)
    assert found == pytest.approx(8 * known.latency + times * 7 / 8 * 1e9 / (links * known.link_bw))


def test_a_product_takes_its_flops_or_its_bytes():
    known = constants("gpu_h100_sxm")
    many = LaunchAction("a", "compute", "run", OpWork(flops=1e12, dtype="bf16", bytes=1e6))
    assert seconds_of(many, hosts(1), known) == pytest.approx(1e12 / (H100.flops("bf16") * known.matmul) + known.kernel)
    moved = LaunchAction("a", "compute", "run", OpWork(flops=1e6, dtype="bf16", bytes=1e9))
    assert seconds_of(moved, hosts(1), known) == pytest.approx(1e9 / (H100.hbm_bw * known.hbm) + known.kernel)


def price(action: LaunchAction) -> float:
    """Seconds that an action's bytes say."""
    return action.work.bytes


def act(queue: str, role: str, seconds: float = 0.0, of: int = -1) -> LaunchAction:
    """An action of some seconds."""
    return LaunchAction("a", queue, role, OpWork(bytes=seconds), of=of)


def test_a_collective_hides_behind_what_runs_until_it_is_waited_for():
    found = launch_seconds(LaunchSchedule((act("network", "start", 3), act("compute", "run", 2), act("compute", "done", of=0),
                                     act("compute", "run", 1))), price)  # fmt: skip
    assert (found.ordered, found.exposed, found.hidden) == (4, 6, 3)


def test_collectives_take_the_network_one_after_another():
    actions = (
        act("network", "start", 3),
        act("network", "start", 3),
        act("compute", "done", of=0),
        act("compute", "done", of=1),
    )
    assert launch_seconds(LaunchSchedule(actions), price).ordered == 6


def test_a_transfer_between_slices_is_exposed_whatever_the_order():
    actions = (act("dcn", "start", 3), act("compute", "run", 2), act("compute", "done", of=0))
    assert launch_seconds(LaunchSchedule(actions), price).ordered == 5


def test_a_loop_takes_its_passes():
    inner = LaunchSchedule((act("network", "start", 1), act("compute", "run", 2), act("compute", "done", of=0)))
    found = launch_seconds(LaunchSchedule((LaunchAction("l", "compute", "loop", body=inner, trips=1000),)), price)
    assert found.ordered == pytest.approx(2000)
    assert found.exposed == pytest.approx(3000)


@pytest.mark.parametrize("seed", range(30))
def test_hidden_is_at_most_the_order_is_at_most_exposed(seed):
    rng = random.Random(seed)

    def made(depth: int) -> LaunchSchedule:
        actions: list[LaunchAction] = []
        for _ in range(rng.randrange(1, 8)):
            kind = rng.randrange(4 if depth else 3)
            if kind == 0:
                actions.append(act("network", "start", rng.random()))
            elif kind == 1:
                actions.append(act(rng.choice(("compute", "network")), "run", rng.random()))
            elif kind == 2:
                open_ = [n for n, one in enumerate(actions) if one.role == "start"]
                actions += [act("compute", "done", of=rng.choice(open_))] if open_ else []
            else:
                actions.append(LaunchAction("l", "compute", "loop", body=made(depth - 1), trips=rng.randrange(4)))
        return LaunchSchedule(tuple(actions))

    found = launch_seconds(made(2), price)
    assert found.hidden <= found.ordered + 1e-9
    assert found.ordered <= found.exposed + 1e-9


@pytest.mark.parametrize("name", [name for name in recorded_files() if "cudnn" in name and name.endswith(".hlo.txt")])
def test_steps_that_were_measured_on_a_gpu_take_as_long_as_their_schedules_say(name):
    measured = recorded_files()[name]["seconds_per_step"]
    known = constants("gpu_h200_sxm", "jax")
    place = LaunchPlace(pw.chip("gpu_h200_sxm"), [{"process": 0}], 1)
    found = launch_seconds(schedule_of(parse(recorded(name).decode()), 1), lambda one: seconds_of(one, place, known))
    assert abs(math.log(found.ordered / measured)) < 0.06, f"{found.ordered:.4f} s, measured {measured:.4f} s"


def test_every_constant_has_a_spread_around_its_value_and_an_origin():
    said = launch_constants()
    for key, entries in said.items():
        if key == "about":
            continue
        for name, (value, low, high, kind, source) in entries.items():
            assert low <= value <= high, f"{key}: {name}"
            assert kind in {"assumed", "literature", "measured here", "fitted on published rows"}, f"{key}: {name}"
            assert source, f"{key}: {name}"


def test_the_constants_of_a_stack_come_before_those_of_its_chip():
    assert constants("gpu_h100_sxm", "torch").matmul < constants("gpu_h100_sxm", "jax").matmul
    assert constants("gpu_v100_sxm2").link_bw == constants("gpu_h100_sxm").link_bw, (
        "what is not there is that of the kind"
    )


def test_a_kind_of_chip_without_constants_is_named():
    with pytest.raises(
        UsageError, match=r"npu_mine: there are no constants for launches on a npu; there are for gpu and tpu\."
    ):
        constants("npu_mine")
