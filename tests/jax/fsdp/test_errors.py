"""What ``pw.fsdp`` refuses: every text names the wrong thing and the fix, and no inner line is shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pathways_nb as pw
from pathways_nb.parallel.fsdp.fsdp_plan import plan_of

PARAMS = {"a": np.ones((8, 4), np.float32), "b": np.ones(4, np.float32)}
X = np.ones((8, 8), np.float32)


def loss(params: Any, x: Any) -> jax.Array:
    return jnp.mean((x @ params["a"] + params["b"]) ** 2)


def step_of(loss: Any = loss, params: Any = PARAMS, place: Any = 4, **options: Any) -> pw.FsdpStep:
    return pw.fsdp(loss, params, on=pw.virtual_slice(place, axes=("d",), name="four"), **options)


def called(loss: Any = loss, *batch: Any, **options: Any) -> Any:
    step = step_of(loss, **options)
    return step.value_and_grad(step.init(PARAMS), *(batch or (X,)))


def planned(*groups: list[str], **options: Any) -> Callable[[], Any]:
    return lambda: step_of(plan=plan_of(groups, **options))


def constrained(params: Any, x: Any) -> jax.Array:
    return loss(params, jax.lax.with_sharding_constraint(x, jax.sharding.PartitionSpec("d")))


def on_a_mesh(params: Any, x: Any) -> jax.Array:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("m",))
    spec = jax.sharding.PartitionSpec("m")
    return loss(params, jax.lax.scan(lambda x, _: (jax.lax.with_sharding_constraint(
        x, jax.sharding.NamedSharding(mesh, spec)), None), x, length=2)[0])  # fmt: skip


def added_up(params: Any, x: Any) -> jax.Array:
    return jax.lax.pmean(loss(params, x), "d")


def keyed(params: Any, x: Any, key: Any) -> jax.Array:
    return loss(params, x) + 0 * jax.random.normal(key)


ONE_DEVICE = "must be the code of one device, but test_errors.py:\\d+ names devices: "
LEAVE_OUT = "Leave meshes, shardings and collectives out of it: fsdp splits the batch"

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    # plans
    "in no bucket": (planned(["a"]), pw.PlanError, "parameter b of the model is in no bucket of the forward plan. Add"),
    "in two buckets": (
        planned(["a", "b"], ["b"]), pw.PlanError, "parameter b is in the forward plan's buckets 0 and 1; it must be in"
    ),
    "of another model": (
        planned(["a"], ["bb"]), pw.PlanError,
        "plan's bucket 1 names 'bb', which the model does not have. Did you mean 'b'. Without plan=, fsdp makes one",
    ),
    "missing at the back": (
        lambda: step_of().with_plan(pw.FsdpPlan((pw.Bucket(("a", "b")),), (pw.Bucket(("b",)),))), pw.PlanError,
        "parameter a of the model is in no bucket of the backward plan",
    ),
    "prefetch": (planned(["a", "b"], prefetch=-1), pw.PlanError, "prefetch=-1 is negative; 0 begins each gather when"),
    "two dtypes": (
        lambda: step_of(params={**PARAMS, "b": jnp.ones(4, jnp.bfloat16)}, plan=plan_of([["a", "b"]])).graph(X),
        pw.PlanError, r"a bucket holds a \(float32\) and b \(bfloat16\): one collective carries one dtype. Put them into",
    ),
    "no plan": (lambda: step_of(plan="blocks"), pw.UsageError, "plan='blocks' is a str; pass a pw.FsdpPlan"),
    # losses
    "no scalar": (
        lambda: called(lambda params, x: x @ params["a"]), pw.UsageError,
        r"fsdp: lambda at test_errors\.py:\d+\(params, \*batch\) returned float32\[2, 4\], not a scalar loss. Return a mean",
    ),
    "a dict": (
        lambda: called(lambda params, x: {"loss": loss(params, x)}), pw.UsageError,
        "returned a dict of 1 array, not a scalar loss. Return a mean",
    ),
    "nothing": (lambda: called(lambda params, x: None), pw.UsageError, "returned None, not a scalar loss"),
    "unasked outputs": (
        lambda: called(lambda params, x: (loss(params, x), x)), pw.UsageError,
        "returned a tuple of 2 arrays, but has_aux=False. Return the loss alone, or pass has_aux=True",
    ),
    "no outputs": (
        lambda: called(has_aux=True), pw.UsageError, r"loss\(params, \*batch\) returned float32\[\], but has_aux=True. Return a pair of the loss"
    ),
    "constraint": (
        lambda: called(constrained), pw.UsageError, f"{ONE_DEVICE}with_sharding_constraint requires .*{LEAVE_OUT}"
    ),
    "mesh in a loop": (lambda: called(on_a_mesh), pw.UsageError, f"fsdp: on_a_mesh {ONE_DEVICE}.*{LEAVE_OUT}"),
    "collective": (lambda: called(added_up), pw.UsageError, f"{ONE_DEVICE}Found an unbound axis name: d. {LEAVE_OUT}"),
    "no function": (lambda: step_of(3), pw.UsageError, r"loss_fn=3 is an int; pass a function loss_fn\(params, \*batch"),
    # batches
    "batch": (
        lambda: called(loss, np.ones((6, 8), np.float32)), pw.ShardingError,
        r"batch\[0\] has shape \(6, 8\) .*not divisible by the 4 devices of axis 'd' of four. Pad it to 8",
    ),
    "planned batch": (
        lambda: step_of().graph(np.ones((6, 8), np.float32)), pw.ShardingError,
        r"batch\[0\] has shape \(6, 8\), whose first dimension is not divisible by 4 devices. Give a batch of 8",
    ),
    "microbatches": (
        lambda: called(accumulate=3), pw.ShardingError, r"not divisible by 4 devices × 3 microbatches. Give a batch of 12"
    ),
    # modes and options
    "mode": (lambda: step_of(mode="zero4"), pw.UsageError, "no mode 'zero4'; modes are ddp, zero1, .*Did you mean 'zero3'"),
    "one axis": (
        lambda: step_of(mode="hsdp"), pw.UsageError,
        r'"hsdp" needs a place of two axes, .*four has 1 axis \(d=4\). Take pw.virtual_slice\(\(2, 2\), axes=',
    ),
    "axis": (lambda: step_of(axis="data"), pw.UsageError, r"the place four has no axis 'data'; its axes are d=4"),
    "place": (lambda: pw.fsdp(loss, PARAMS, on=4), pw.UsageError, r"on=4 is an int; pass a pw.virtual_slice\(\.\.\.\)"),
    "optimizer": (lambda: step_of(optimizer="adam"), pw.UsageError, "optimizer='adam' is a str. Give one of Optax"),
    "no optimizer": (
        lambda: step_of()(step_of().init(PARAMS), None, X), pw.UsageError,
        r"has no optimizer, so it can only value_and_grad. Give pw.fsdp optimizer=",
    ),
    "accumulate": (lambda: step_of(accumulate=0), pw.UsageError, "accumulate=0 must be a positive number of microbatches"),
    "dtype": (lambda: step_of(param_dtype="bf16"), pw.UsageError, "param_dtype='bf16' is no dtype of floating point. Give"),
    "integers": (lambda: step_of(reduce_dtype=jnp.int8), pw.UsageError, "reduce_dtype=.*int8.* is no dtype of floating"),
    "frozen": (lambda: step_of(frozen={"a": True}), pw.UsageError, "frozen has the form .*or a function of a name: lambda"),
    "frozen by a text": (lambda: step_of(frozen="a"), pw.UsageError, "frozen='a' has 'a', which is no truth value. Give a tree"),
    "frozen without effect": (
        lambda: step_of(params={"embed": X, "head": X}, frozen=lambda name: "embde" in name), pw.UsageError,
        "fsdp: frozen= is true of no name in params, so it has no effect. Did you mean 'embed'. The names are embed, head.",
    ),
    # parameters and state
    "shape": (
        lambda: step_of().init({**PARAMS, "b": np.ones(3)}), pw.UsageError,
        r"parameter b has the shape \[3\], but the step was made for \[4\]. Make the step with pw.fsdp\(",
    ),
    "shape that is made": (
        lambda: step_of().init(lambda key: {**PARAMS, "b": jnp.ones(3)}, jax.random.key(0)), pw.UsageError,
        r"parameter b has the shape \[3\]",
    ),
    "lacking": (lambda: step_of().init({"a": PARAMS["a"]}), pw.UsageError, "params lacks b. Give them as the step was"),
    "more": (lambda: step_of().init({**PARAMS, "c": X}), pw.UsageError, "params has c, which the step does not know"),
    "no array": (
        lambda: step_of(params={**PARAMS, "act": jax.nn.relu}), pw.UsageError,
        r"parameter act is .*; parameters are arrays or shapes. Take what is no array out of the tree\.",
    ),
    "no state": (
        lambda: step_of(optimizer=optax.adam(1e-3))(PARAMS, X, X), pw.UsageError,
        r"the state is one array, but it must be that of the optimizer. Give the state of step.init\(params\) or of",
    ),
    "state of another optimizer": (
        lambda: step_of(optimizer=optax.adam(1e-3))(*step_of(optimizer=optax.sgd(1e-3, 0.9)).init(PARAMS), X),
        pw.UsageError, r"the state has 0.trace.a and lacks 0.count",
    ),
    "state of the same arrays": (
        lambda: step_of(optimizer=optax.adam(1e-3))(*step_of(optimizer=optax.adamw(1e-3)).init(PARAMS), X),
        pw.UsageError, r"the state consists of ScaleByAdamState, EmptyState, EmptyState, not of ScaleByAdamState, Em",
    ),
    "raw key in the batch": (
        lambda: called(keyed, X, jax.random.PRNGKey(0)), pw.ShardingError,
        r"fsdp: batch\[1\] \(uint32\[2\]\) is a random key of bare numbers, whose first dimension would be split over "
        r"devices. Give a typed key, jax.random.key\(0\): each device gets it whole.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named_and_no_inner_line_is_shown(controller: pw.Controller, name: str) -> None:
    call, error, text = REFUSED[name]
    with pytest.raises(error, match=text) as caught:
        call()
    assert caught.value.__cause__ is None
    for entry in caught.traceback:
        assert entry.path == Path(__file__) or "__tracebackhide__" in entry.locals, entry


def test_an_error_of_the_loss_shows_the_line_of_the_loss(left: pw.VirtualSlice) -> None:
    def wrong(params: Any, x: Any) -> jax.Array:
        return loss(params, x @ x @ jnp.ones((3, 3)))

    step = pw.fsdp(wrong, PARAMS, on=left)
    with pytest.raises(TypeError, match="dot_general requires contracting dimensions") as caught:
        step.value_and_grad(step.init(PARAMS), X)
    assert caught.traceback[-1].name == "wrong"
    for entry in caught.traceback:
        assert entry.path == Path(__file__) or "__tracebackhide__" in entry.locals, entry


PLAN = '{"format": 1, "buckets": [{"params": ["w"], "keep": false}], "backward": null, "prefetch": 1, "name": "own"}'
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(("old", "new", "why"), [
    (PLAN, "[]", "it is [], not an object."),
    (PLAN, "{", "not JSON, line 1 column 2: "),
    (PLAN, '{"format": 1}', "it lacks 'buckets'."),
    (PLAN, DEEP, "brackets are nested more deeply than Python can read."),
    ("null", "[" * 60 + "]" * 60, "brackets are nested more than 50 deep."),
    ('"format": 1', '"format": 7', "format is 7, not 1."),
    ('["w"]', '"w"', "buckets[0].params is 'w', not a list."),
    ('["w"]', '["w", 3]', "buckets[0].params[1] is 3, not text."),
    ("false", '"a"', "buckets[0].keep is 'a', not true or false."),
    ("false", "-1", "buckets[0].keep is -1, not true or false."),
    ('"keep": false', '"kept": false', "buckets[0] has 'kept', which is none of 'params', 'keep'; 'keep' is near."),
    ("null", "3", "backward is 3, not a list."),
    ('"prefetch": 1', '"prefetch": -1', "prefetch is -1, not a whole number from 0 to "),
    ('"prefetch": 1', '"prefetch": Infinity', "prefetch is inf, not a whole number from 0 to "),
    ('"prefetch": 1', '"prefetch": true', "prefetch is True, not a whole number from 0 to "),
    ('"own"', "null", "name is None, not text."),
])  # fmt: skip
def test_a_file_that_is_no_plan(tmp_path: Path, old: str, new: str, why: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(PLAN)
    assert pw.FsdpPlan.load(path) == plan_of([["w"]])
    path.write_text(PLAN.replace(old, new))
    with pytest.raises(pw.PlanError, match=re.escape(f"plan.json is no plan that FsdpPlan.save wrote: {why}")):
        pw.FsdpPlan.load(path)


def test_a_name_alone_is_no_bucket() -> None:
    with pytest.raises(pw.PlanError, match=r"Bucket\('embed'\): give a tuple of names, such as \('embed',\)"):
        pw.Bucket("embed")


def sum_of(params: Any, x: Any, y: Any) -> Any:
    return (x * params["w"].sum() * y).mean().astype(jnp.float32)


def test_arrays_of_a_batch_have_the_same_rows(left: pw.VirtualSlice) -> None:
    step = pw.fsdp(sum_of, {"w": np.ones(8, np.float32)}, on=left)
    with pytest.raises(pw.ShardingError, match=r"batch\[1\] has 4 rows and batch\[0\] has 8: the first dimension"):
        step.traced(np.ones(8), np.ones(4))
    with pytest.raises(pw.ShardingError, match=r"give a key as jax.random.key\(0\)"):
        step.value_and_grad(step.init({"w": np.ones(8, np.float32)}), np.ones((8, 2)), np.ones(4))


def test_a_batch_that_was_refused_is_forgotten(left: pw.VirtualSlice) -> None:
    params = {"w": np.ones(8, np.float32)}
    step = pw.fsdp(sum_of, params, on=left)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        step.value_and_grad(step.init(params), np.ones(8, np.float32))
    step.value_and_grad(step.init(params), np.ones(8, np.float32), np.ones(8, np.float32))
    assert len(step.graph().collectives) == 2


def test_what_is_no_plan_of_this_step(left: pw.VirtualSlice) -> None:
    step = pw.fsdp(sum_of, {"w": np.ones(8, np.float32)}, on=left, batch=(np.ones(8), np.ones(8)))
    with pytest.raises(pw.UsageError, match=r"plan=\{\} is a dict; pass a pw.FsdpPlan"):
        step.with_plan({})
    with pytest.raises(pw.PlanError, match=r"'z', which the model does not have"):
        step.planner(chip="gpu_h100_sxm").timeline(pw.FsdpPlan((pw.Bucket(("z",)),)))


def test_a_loss_may_be_a_constant(left: pw.VirtualSlice) -> None:
    step = pw.fsdp(lambda params, x: 3.0, PARAMS, on=left)
    value, gradients = step.value_and_grad(step.init(PARAMS), X)
    assert float(value) == 3.0
    assert not np.any(gradients["a"].result())
