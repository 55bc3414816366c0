"""Saved states come back bit for bit, on any number of devices, shard by shard."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pathways_nb as pw
from pathways_nb.errors import UsageError
from pathways_nb.session.checkpoints import state_files

ADAM = optax.adam(1e-2)
X = np.random.default_rng(0).normal(size=(16, 8)).astype("f4")
PARAMS = {"w": np.random.default_rng(1).normal(size=(8, 8)).astype("f4"), "b": np.zeros(8, "f4")}


def same(one: Any, other: Any) -> None:
    """Equal structure, dtypes and bits."""
    one, other = pw.get(one), pw.get(other)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if jnp.issubdtype(jnp.result_type(a), jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()


def trainer(place: pw.VirtualSlice) -> pw.Program:
    spec = {"w": pw.P("x"), "b": None}
    loss = pw.jit(lambda p, x: jnp.mean((jnp.tanh(x @ p["w"] + p["b"]) - 1) ** 2), on=place, in_shardings=(spec, None))

    @pw.program
    def step(params, state, x):
        value, gradients = jax.value_and_grad(loss)(params, x)
        updates, state = ADAM.update(gradients, state)
        return optax.apply_updates(params, updates), state, value

    return step


@pytest.fixture
def trained(left, tmp_path) -> tuple[Any, Any, Any]:
    """Path, step and state of a model that was saved after two steps on four devices."""
    step = trainer(left)
    params, state = pw.put(PARAMS, on=left, shardings={"w": pw.P("x"), "b": None}), ADAM.init(PARAMS)
    for _ in range(2):
        params, state, _ = step(params, state, X)
    pw.save_state(tmp_path / "state", {"params": params, "adam": state})
    return tmp_path / "state", step, {"params": params, "adam": state}


def test_a_step_after_restoring_equals_the_step_without_the_detour(trained):
    path, step, tree = trained
    found = pw.restore_state(path, like=tree)
    same(found, tree)
    assert all(a.sharding == b.sharding for a, b in zip(*map(jax.tree.leaves, (found, tree)), strict=True))
    same(step(found["params"], found["adam"], X), step(tree["params"], tree["adam"], X))


@pytest.mark.parametrize(("devices", "island"), [(2, 0), (4, 1), (2, 1), (1, 1)])
def test_it_comes_back_onto_other_devices(trained, devices, island):
    path, _, tree = trained
    place = pw.virtual_slice(devices, island=island)
    found = pw.restore_state(
        path, like=tree, on=place, shardings={"params": {"w": pw.P(None, "x"), "b": None}, "adam": None}
    )
    same(found, tree)
    weights = found["params"]["w"].array()
    assert {shard.data.shape for shard in weights.addressable_shards} == {(8, 8 // devices)}
    assert len(weights.sharding.device_set) == devices
    after = trainer(place)(found["params"], found["adam"], X)  # it is an ordinary argument there
    assert np.isfinite(float(after[2]))


def test_no_device_gets_more_than_its_shard(trained, monkeypatch):
    path, _, tree = trained
    put, sent = jax.device_put, []

    def counted(x, *args, **kwargs):
        sent.append(x.nbytes)
        return put(x, *args, **kwargs)

    monkeypatch.setattr(jax, "device_put", counted)
    found = pw.restore_state(path, on=pw.virtual_slice(4, island=1), shardings={
        "params": {"w": pw.P("x"), "b": pw.P("x")},
        "adam": ({"count": None, "mu": pw.P("x"), "nu": pw.P("x")}, {}),
    })  # fmt: skip
    weights, biases, count = 3 * [8 * 8 * 4 // 4] * 4, 3 * [8 * 4 // 4] * 4, [4] * 4
    assert sorted(sent) == sorted(weights + biases + count)
    same(jax.tree.leaves(found), jax.tree.leaves(tree))


def test_saving_launches_nothing_on_the_devices(left, tmp_path, monkeypatch):
    replicated = pw.put(np.arange(4096.0), on=left)

    def launched(*args, **kwargs):
        raise AssertionError("a launch that the controller does not know of")

    monkeypatch.setattr(jax.lax, "slice_in_dim", launched)
    pw.save_state(tmp_path / "state", replicated)
    same(pw.restore_state(tmp_path / "state"), replicated)


def test_leaves_on_several_islands_and_on_none_come_back_where_they_were(left, right, tmp_path):
    tree = {
        "left": pw.put(X, on=left, shardings=pw.P("x")),
        "right": [pw.put(jax.random.split(jax.random.key(1), 4), on=right, shardings=pw.P("x"))],
        "jax": jnp.arange(3, dtype="bfloat16"),
        "key": jax.random.key(7, impl="rbg"),
        "numpy": (np.arange(3), np.float64(0.5), np.zeros((0, 2), "i1"), np.array(2 + 3j)),
        "numbers": [3, 0.1, True, 2j, None, ()],
    }
    pw.save_state(tmp_path / "state", tree)
    found = pw.restore_state(tmp_path / "state", like=tree)
    same(found, tree)
    assert [type(leaf) for leaf in jax.tree.leaves(found)] == [type(leaf) for leaf in jax.tree.leaves(tree)]
    assert found["left"].sharding == tree["left"].sharding
    assert found["right"][0].sharding == tree["right"][0].sharding
    same(pw.restore_state(tmp_path / "state"), tree)  # without `like`: the same containers, on the host


def test_a_place_may_take_what_was_never_on_one(left, tmp_path):
    tree = {"n": 3, "empty": np.zeros((0, 4)), "keys": jax.random.split(jax.random.key(0), 4), "x": np.arange(4)}
    pw.save_state(tmp_path / "state", tree)
    found = pw.restore_state(
        tmp_path / "state", on=left, shardings={"n": None, "empty": None, "keys": pw.P("x"), "x": pw.P("x")}
    )
    assert type(found["n"]) is int
    same(found | {"n": 0}, pw.put(tree, on=left) | {"n": 0})


def test_other_nodes_come_back_as_dicts_by_field_without_like(trained):
    found = pw.restore_state(trained[0])
    assert found["adam"][0].keys() == {"count", "mu", "nu"}
    assert isinstance(found["adam"][0]["mu"]["w"], np.ndarray)
    assert found["adam"][1] == {}


def test_a_struct_with_a_sharding_gives_an_array(trained, right):
    path, _, tree = trained
    sharding = pw.put(X, on=right, shardings=pw.P("x")).sharding
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
    like["params"]["w"] = jax.ShapeDtypeStruct((8, 8), "f4", sharding=sharding)
    found = pw.restore_state(path, like=like)
    assert isinstance(found["params"]["w"], jax.Array)
    assert found["params"]["w"].sharding == sharding
    assert isinstance(found["params"]["b"], np.ndarray)
    same(found, tree)


def test_memory_on_a_place_is_accounted_for(trained, controller, quiet):
    path, _, _ = trained
    quiet(controller)
    before = len(controller.machine.store.buffers)
    found = pw.restore_state(path, on=pw.virtual_slice(2, island=1))
    assert len(controller.machine.store.buffers) == before + 7
    del found
    quiet(controller)
    assert len(controller.machine.store.buffers) == before


def test_a_failed_restore_gives_memory_back(trained, controller, quiet, monkeypatch):
    def broken(*args):
        raise KeyboardInterrupt

    quiet(controller)
    before = len(controller.machine.store.buffers)
    monkeypatch.setattr(state_files, "read", broken)
    with pytest.raises(KeyboardInterrupt):
        pw.restore_state(trained[0], on=pw.virtual_slice(2, island=1))
    quiet(controller)
    assert len(controller.machine.store.buffers) == before


def test_the_files_are_data_and_orbax_reads_them(trained, monkeypatch):
    import orbax.checkpoint as ocp

    path, _, tree = trained
    about = json.loads((path / "state.json").read_text())
    assert {leaf["path"]: (leaf["shape"], leaf["dtype"]) for leaf in about["leaves"]}["['params']['w']"] == (
        [8, 8],
        "float32",
    )
    assert about["versions"]["jax"] == jax.__version__
    monkeypatch.setattr(pickle, "loads", None)
    pw.restore_state(path)
    with ocp.PyTreeCheckpointer() as checkpointer:
        names = [leaf["path"] for leaf in about["leaves"]]
        how = dict.fromkeys(names, ocp.RestoreArgs(restore_type=np.ndarray))
        found = checkpointer.restore(
            path / "arrays", args=ocp.args.PyTreeRestore(dict.fromkeys(names, 0), restore_args=how)
        )
    same(list(map(found.get, names)), [np.asarray(leaf) for leaf in jax.tree.leaves(tree)])


def test_a_donated_future_still_says_where(left, tmp_path):
    double = pw.jit(lambda v: v * 2, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"), donate_argnums=0)
    before = pw.put(X, on=left, shardings=pw.P("x"))
    pw.save_state(tmp_path / "state", before)
    pw.wait(double(before))
    found = pw.restore_state(tmp_path / "state", like=before)
    same(double(found), X * 2)


def test_a_weak_type_is_that_of_like(left, tmp_path):
    rate = pw.put(0.5, on=left)
    assert rate.weak_type
    pw.save_state(tmp_path / "state", rate)
    assert pw.restore_state(tmp_path / "state", like=rate).weak_type
    assert not pw.restore_state(tmp_path / "state", on=left).weak_type


def test_too_little_memory_is_an_error_that_names_the_leaf(tmp_path):
    pw.save_state(tmp_path / "state", {"x": np.zeros(4096, "f4")})
    with pw.attach("cpu", islands=1, devices_per_island=2, hbm=10_000):
        with pytest.raises(pw.OutOfMemoryError, match=r"restore_state\('.*state'\): \['x'\]"):
            pw.restore_state(tmp_path / "state", on=pw.virtual_slice(2))
        same(
            pw.restore_state(tmp_path / "state", on=pw.virtual_slice(2), shardings=pw.P("x")),
            {"x": np.zeros(4096, "f4")},
        )


def test_an_event_loop_may_be_running(left, tmp_path):
    async def cell():
        pw.save_state(tmp_path / "state", pw.put(X, on=left))
        return pw.restore_state(tmp_path / "state", on=left)

    same(asyncio.run(cell()), X)


# ---- paths


def test_a_path_is_replaced_only_when_asked_and_only_if_it_is_a_state(tmp_path):
    pw.save_state(tmp_path / "a" / "state", {"x": 1})
    with pytest.raises(
        UsageError, match=r"save_state\('.*state'\): the path exists. Pass another one, or overwrite=True."
    ):
        pw.save_state(tmp_path / "a" / "state", {"x": 2})
    assert pw.restore_state(tmp_path / "a" / "state") == {"x": 1}
    pw.save_state(tmp_path / "a" / "state", {"x": 2}, overwrite=True)
    assert pw.restore_state(tmp_path / "a" / "state") == {"x": 2}
    assert [one.name for one in (tmp_path / "a").iterdir()] == ["state"]
    with pytest.raises(UsageError, match="what is there is no saved state and is not replaced"):
        pw.save_state(tmp_path / "a", {"x": 2}, overwrite=True)


def test_a_failed_save_leaves_the_older_state(tmp_path, monkeypatch):
    pw.save_state(tmp_path / "state", {"x": 1})

    def interrupted(path, arrays):
        path.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(state_files, "_save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pw.save_state(tmp_path / "state", {"x": 2}, overwrite=True)
    assert pw.restore_state(tmp_path / "state") == {"x": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["state"]


def test_there_is_no_such_path(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"restore_state\('.*nowhere'\): there is no such path."):
        pw.restore_state(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "it has no readable state.json"),
        ("{", "not JSON"),
        ('{"format": 3}', "format is 3, not a whole number from 1 to 2"),
        ('{"format": 2}', "lacks 'digest'"),
        ('{"format": 2, "digest": 5}', "its digest is [0-9]+, and 5 was written"),
        (
            '{"format": 1, "tree": 0, "leaves": [{"path": "", "shape": [], "dtype": "float3", "kind": "array", "impl": ""}]}',
            r"leaves\[0\].dtype is 'float3', which JAX does not have",
        ),
        ('{"format": 1, "tree": 0, "leaves": []}', "does not name each of 0 leaves once"),
        ('{"format": 1, "tree": {"set": []}, "leaves": []}', "is no container"),
        ('{"format": 1, "tree": ' + '{"list":[' * 5000 + "]}" * 5000 + ', "leaves": []}', "brackets"),
    ],
)
def test_what_is_no_saved_state_is_refused(tmp_path, text, why):
    if text is not None:
        (tmp_path / "state.json").write_text(text)
    with pytest.raises(UsageError, match=rf"that is no state that pw.save_state wrote \(.*{why}"):
        pw.restore_state(tmp_path)


def test_lost_files_are_named(tmp_path):
    pw.save_state(tmp_path / "state", {"x": np.arange(3)})
    for file in (tmp_path / "state" / "arrays").rglob("*"):
        if file.is_file():
            file.unlink()
    with pytest.raises(
        UsageError,
        match=r"restore_state\('.*state'\): the state is damaged: its file arrays/.* is missing, and [0-9]+ other files as well. This concerns \['x'\]. Restore another copy.",
    ):
        pw.restore_state(tmp_path / "state")


# ---- what does not fit


@pytest.mark.parametrize(
    ("like", "text"),
    [
        ({"a": {"w": X, "v": X}}, r"The first leaf that only the saved state has is \['a'\]\['b'\], the first that only like= has is \['a'\]\['v'\]"),
        ({"a": {"w": X}}, r"only the saved state has is \['a'\]\['b'\], the first that only like= has is none"),
        (X, r"only the saved state has is \['a'\]\['b'\], the first that only like= has is the tree itself"),
        ({"a": {"w": X[:8], "b": X}}, r"\['a'\]\['w'\] has the shape \(16, 8\) in the saved state and \(8, 8\) in like=. Pass the saved shape"),
        ({"a": {"w": X.astype("f8"), "b": X}}, r"\['a'\]\['w'\] is float32 in the saved state and float64 in like=. Pass the saved dtype"),
        ({"a": {"w": X, "b": "text"}}, r"\['a'\]\['b'\] is a str in like=, which is not an array"),
    ],
)  # fmt: skip
def test_a_tree_that_differs_is_refused(tmp_path, like, text):
    pw.save_state(tmp_path / "state", {"a": {"w": X, "b": X}})
    with pytest.raises(UsageError, match=text):
        pw.restore_state(tmp_path / "state", like=like)


def test_keys_of_another_kind_are_refused(tmp_path):
    pw.save_state(tmp_path / "state", jax.random.key(0))
    with pytest.raises(UsageError, match="the array is key<fry> in the saved state and key<rbg> in like="):
        pw.restore_state(tmp_path / "state", like=jax.random.key(0, impl="rbg"))


def test_a_leaf_that_is_no_array_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"save_state: the leaf \['a'\]\[1\] is a function, which has no values"):
        pw.save_state(tmp_path / "state", {"a": [1, same]})
    with pytest.raises(UsageError, match="is a ShapeDtypeStruct, which has no values"):
        pw.save_state(tmp_path / "state", jax.ShapeDtypeStruct((3,), "f4"))
    assert not (tmp_path / "state").exists()


def test_shardings_need_a_place_that_they_fit(left, tmp_path):
    pw.save_state(tmp_path / "state", {"x": np.zeros(3)})
    with pytest.raises(UsageError, match=r"shardings= needs the place: pass on=pw.virtual_slice"):
        pw.restore_state(tmp_path / "state", shardings=pw.P("x"))
    with pytest.raises(UsageError, match="on=4 is an int; pass a pw.virtual_slice"):
        pw.restore_state(tmp_path / "state", on=4)
    with pytest.raises(
        pw.ShardingError, match=r"\['x'\] has shape \(3,\) and shardings=P\('x'\): .* not divisible by the 4 devices"
    ):
        pw.restore_state(tmp_path / "state", on=left, shardings=pw.P("x"))


def test_a_future_on_devices_that_are_gone_is_no_pattern(left, controller, tmp_path):
    old = pw.put(X, on=left)
    pw.save_state(tmp_path / "state", old)
    with pw.attach("cpu", islands=1, devices_per_island=2):
        with pytest.raises(
            UsageError, match="the future itself of like= is on no device that is attached now. Pass on="
        ):
            pw.restore_state(tmp_path / "state", like=old)
        same(pw.restore_state(tmp_path / "state", on=pw.virtual_slice(2)), X)


def test_orbax_is_optional(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(UsageError, match=r"save_state needs Orbax: pip install 'pathways_nb\[checkpoint\]'."):
        pw.save_state(tmp_path / "state", X)


# ---- in the simulator


def test_a_simulation_without_values_has_nothing_to_save_and_restores_shapes(trained, tmp_path):
    path, _, tree = trained
    with pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=4):
        place = pw.virtual_slice(4)
        with pytest.raises(UsageError, match="simulated devices compute none"):
            pw.save_state(tmp_path / "simulated", pw.put(X, on=place))
        found = pw.restore_state(path, like=tree, on=place)
        assert found["params"]["w"].shape == (8, 8)
        again = pw.restore_state(path, like=found)
        assert again["params"]["w"].sharding == found["params"]["w"].sharding
        pw.wait(again)
        with pytest.raises(UsageError, match="simulated devices compute none"):
            again["params"]["w"].result()


def test_a_simulation_with_values_saves_and_restores_them(controller, tmp_path):
    with pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=4, values=True):
        place = pw.virtual_slice(4)
        double = pw.jit(lambda v: v * 2, on=place, in_shardings=pw.P("x"))
        pw.save_state(tmp_path / "state", double(X))
        found = pw.restore_state(tmp_path / "state", on=place, shardings=pw.P("x"))
        same(double(found), X * 4)
