"""Plans of a step in simulated time: two evaluations agree to the last tick, and no plan beats the bound."""

from __future__ import annotations

import random
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
import pytest

import pathways_nb as pw
from pathways_nb.examples import llama3
from pathways_nb.parallel.fsdp.fsdp_plan import plan_of
from pathways_nb.parallel.fsdp.operation_costs import TICK
from pathways_nb.parallel.fsdp.step_planner import Planner

SHAPE = llama3.Shape(layers=3, features=1024, hidden=4096, heads=8, shared_heads=2, vocabulary=8192)
CHIP = pw.chip("gpu_h100_sxm").replace(
    pod=(64,), links=1, link_bw=20e9, link_efficiency=1.0, hop_latency=1e-12, start_latency=40e-6
)


def step(mode: str = "zero3", **options) -> pw.FsdpStep:
    tokens = jax.ShapeDtypeStruct((16, 2048), jnp.int32)
    on = pw.virtual_slice((2, 8), axes=("r", "s")) if mode == "hsdp" else pw.virtual_slice(16)
    return pw.fsdp(
        llama3.loss(SHAPE), llama3.params(SHAPE), on=on, mode=mode, batch=(tokens, tokens),
        **{"param_dtype": jnp.bfloat16, "reduce_dtype": jnp.float32, **options},
    )  # fmt: skip


def cut(names: Sequence[str], chance: random.Random) -> list[list[str]]:
    """Names in buckets of random sizes."""
    found: list[list[str]] = [[]]
    share = chance.choice([0.1, 0.3, 0.8])
    for name in names:
        found[-1].append(name)
        if chance.random() < share:
            found.append([])
    return [bucket for bucket in found if bucket]


def random_plan(planner: Planner, seed: int) -> pw.FsdpPlan:
    chance, names = random.Random(seed), [one.name for one in planner.traced.parameters]
    used = [names[use.param] for use in planner.outline.forward]
    used += [name for name in names if name not in used]  # whole on each device
    made = [names[one.param] for one in planner.outline.reductions]
    forward = plan_of(cut(used, chance)).keeping(lambda bucket: chance.random() < 0.2)
    return pw.FsdpPlan(forward.buckets, plan_of(cut(made, chance)).buckets, prefetch=chance.randrange(4))


@pytest.mark.parametrize("streams", [2, 3])
@pytest.mark.parametrize("mode", ["zero3", "hsdp"])
def test_the_fast_evaluation_and_the_timeline_agree_to_the_last_tick(mode, streams) -> None:
    planner = step(mode).planner(chip=CHIP, streams=streams)
    plans = [planner.greedy(), planner.per_block(2), planner.per_parameter(), planner.search(budget=60)]
    for plan in [*plans, *(random_plan(planner, seed) for seed in range(8))]:
        assert planner.ticks(plan) == planner.timeline(plan).end, plan


NORMS = {"norm", *(f"layers.{layer}.{which}_norm" for layer in range(3) for which in ("attention", "mlp"))}


@pytest.mark.parametrize("devices", [16, 7, 3000])
def test_uneven_parameters_are_exchanged_with_their_padding(devices) -> None:
    there = step().elsewhere(devices=devices)
    assert {one.name for one in there.parameters if one.dim is None} == (set() if devices == 16 else NORMS)
    planner = there.planner(chip=CHIP.replace(pod=(4096,)))
    for plan in (planner.per_parameter(1), planner.per_block(), random_plan(planner, 0)):
        found = planner.timeline(plan)
        assert planner.ticks(plan) == found.end
        assert found.exposed >= planner.bound_of(plan) * (1 - 1e-9)


def test_no_plan_is_below_the_bound_and_the_search_comes_near() -> None:
    planner = step().planner(chip=CHIP)
    others = [planner.greedy(), planner.per_block(), *(random_plan(planner, seed) for seed in range(8))]
    timelines = {plan.name: planner.timeline(plan) for plan in others}
    assert all(one.about.bound <= one.exposed for one in timelines.values())
    exposed = {name: one.exposed for name, one in timelines.items()}
    searched = planner.timeline(planner.search()).exposed
    assert 0 < planner.bound <= searched < min(exposed.values())
    assert searched < 0.9 * exposed["greedy"]


def test_a_timeline_adds_up() -> None:
    planner = step().planner(chip=CHIP)
    found = planner.timeline(planner.per_block())
    assert found.end - found.compute == sum(stall.end - stall.start for stall in found.stalls)
    assert found.exposed == pytest.approx(found.waited + found.copied * TICK)
    for stream in ("compute", "gather", "reduce"):
        spans = [span for span in found.spans if span.stream == stream]
        assert spans
        assert all(one.end <= two.start for one, two in zip(spans, spans[1:], strict=False))
    exchanges = sorted((span.start, span.end) for span in found.spans if span.stream != "compute")
    assert all(one[1] <= two[0] for one, two in zip(exchanges, exchanges[1:], strict=False)), "one stream for both"
    first = found.longest_stalls(1)[0]
    assert first.seconds == max(stall.seconds for stall in found.stalls)


def test_memory_is_that_of_its_categories() -> None:
    planner = step(optimizer=optax.adamw(1e-4)).planner(chip=CHIP)
    found = planner.timeline(planner.per_block()).memory
    size = sum(one.size for one in planner.traced.parameters)
    assert found.at_peak()["parameters"] >= 4 * size // 16
    assert found.at_peak()["optimizer"] == pytest.approx(8 * size / 16, rel=1e-3)
    assert sum(found.at_peak().values()) == found.peak
    kept = planner.timeline(planner.per_block().keeping(True)).memory
    assert kept.bytes["gathered"].max() > found.bytes["gathered"].max(), "kept from the forward pass"


def test_a_search_holds_its_memory_bound() -> None:
    planner = step().planner(chip=CHIP)
    free = planner.timeline(planner.search()).memory.peak
    least = planner.timeline(planner.per_parameter()).memory.peak
    bound = (free + least) / 2
    assert planner.timeline(planner.search(bound)).memory.peak <= bound < free
    with pytest.raises(pw.PlanError, match=r"no plan fits 1 MB per device: the smallest needs .* Use more devices"):
        planner.search(1e6)


def test_a_search_is_deterministic_and_names_every_parameter_once() -> None:
    one, two = (step().planner(chip=CHIP).search(budget=80) for _ in range(2))
    assert one == two
    one.check([each.name for each in step().parameters])


def test_what_is_missing_is_named(controller) -> None:
    bare = pw.fsdp(lambda params, x: (params * x).mean(), jnp.ones(8), on=pw.virtual_slice(2))
    with pytest.raises(pw.UsageError, match=r"the shapes of a whole batch are needed.*batch=\(jax.ShapeDtypeStruct"):
        bare.search(chip="gpu_h100_sxm")
    with pytest.raises(pw.UsageError, match=r"for which chip\? The attached devices are real.*gpu_h100_sxm"):
        bare.search(batch=(jnp.ones(8),))


def test_a_search_leaves_out_buckets_of_several_dtypes_without_a_word() -> None:
    params = {f"layers.{number}": jax.ShapeDtypeStruct((64, 64), dtype)
              for number, dtype in enumerate([jnp.float32, jnp.bfloat16] * 4)}  # fmt: skip
    blocks = {"layers": [{"a": params[f"layers.{2 * at}"], "b": params[f"layers.{2 * at + 1}"]} for at in range(4)]}

    def loss(params, x):
        for one in params["layers"]:
            x = jnp.tanh(x @ one["a"]) @ one["b"].astype(jnp.float32)
        return (x**2).mean()

    made = pw.fsdp(loss, blocks, on=pw.virtual_slice(16), batch=(jax.ShapeDtypeStruct((64, 64), jnp.float32),))
    planner, said = made.planner(chip=CHIP), list[str]()
    plan = planner.search(say=said.append)
    assert planner.ticks(plan) == planner.timeline(plan).end
    assert not said
