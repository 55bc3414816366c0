"""A restored state has the values that were saved, or is refused by its leaf."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.errors import UsageError
from tests.jax.session.damaged_states import bits, tried

NUMBERS = {"tokens": 3_000_000_000, "rate": 1e39, "big": 2**63 + 1, "done": True, "z": 1e39 + 2j, "x": float("inf")}


def typed(tree: Any) -> list[tuple[type, Any]]:
    return [(type(leaf), leaf) for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("with_like", [True, False])
@pytest.mark.parametrize("on", [True, False])
def test_pythons_numbers_come_back_as_they_were(
    left: pw.VirtualSlice, tmp_path: Path, with_like: bool, on: bool
) -> None:
    tree = {**NUMBERS, "w": np.ones(4, "f4")}
    pw.save_state(tmp_path / "state", tree)
    like = {**{name: type(value)() for name, value in NUMBERS.items()}, "w": np.zeros(4, "f4")} if with_like else None
    found = pw.restore_state(tmp_path / "state", like=like, on=left if on else None)
    assert isinstance(found.pop("w"), pw.Future if on else np.ndarray)
    assert typed(found) == typed(NUMBERS)


def test_the_loop_of_the_guide_keeps_its_step(left: pw.VirtualSlice, tmp_path: Path) -> None:
    place = left
    params = pw.put({"w": np.ones(4, "f4")}, on=place)
    like = {"params": params, "step": 0}
    pw.save_state(tmp_path / "state", {"params": params, "step": 3_000_000_000})
    assert pw.restore_state(tmp_path / "state", like=like, on=place)["step"] == 3_000_000_000
    shards = {"params": pw.P("x"), "step": None}
    assert pw.restore_state(tmp_path / "state", like=like, on=place, shardings=shards)["step"] == 3_000_000_000


def test_a_number_of_another_kind_is_refused(tmp_path: Path) -> None:
    pw.save_state(tmp_path / "state", {"step": 3})
    with pytest.raises(UsageError, match=r"\['step'\] is int in the saved state and float in like=. Pass the saved"):
        pw.restore_state(tmp_path / "state", like={"step": 0.0})


def test_an_integer_beyond_64_bits_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the leaf \['seed'\] is an int of 71 bits, and a state holds up to 64."):
        pw.save_state(tmp_path / "state", {"seed": 2**70})


TOO_LARGE = [
    (np.array([1, 3_000_000_000]), r"\['x'\]\[1\] is 3000000000, which int32 cannot hold \(-2147483648 to 2147483647\), and JAX keeps int64 as int32"),
    (np.array([[1.0, 1e39]]), r"\['x'\]\[0, 1\] is 1e\+39, which float32 cannot hold \(up to 3.4028e\+38\), and JAX keeps float64 as float32"),
    (np.array([2**40], "u8"), r"\['x'\]\[0\] is 1099511627776, which uint32 cannot hold"),
    (np.array([1e39 + 1j]), r"\['x'\]\[0\] is \(1e\+39\+1j\), which complex64 cannot hold"),
    (np.int64(-(2**40)), r"\['x'\] is -1099511627776, which int32 cannot hold"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "text"), TOO_LARGE)
def test_what_jax_would_change_is_refused_on_devices_and_comes_back_on_the_host(
    left: pw.VirtualSlice, tmp_path: Path, value: Any, text: str, quiet: Callable[[Any], None], controller: Any
) -> None:
    tree = {"w": np.ones(4, "f4"), "x": value}
    pw.save_state(tmp_path / "state", tree)
    quiet(controller)
    before = len(controller.machine.store.buffers)
    struct = jax.ShapeDtypeStruct(np.shape(value), np.asarray(value).dtype, sharding=pw.put(0.0, on=left).sharding)
    for how in ({"on": left}, {"on": left, "like": tree}, {"like": tree | {"x": struct}}):
        with pytest.raises(UsageError, match=r"restore_state\('.*state'\): " + text):
            pw.restore_state(tmp_path / "state", **how)
    quiet(controller)
    assert len(controller.machine.store.buffers) == before, "memory is given back"
    assert bits(pw.restore_state(tmp_path / "state")) == bits(tree)
    assert bits(pw.restore_state(tmp_path / "state", like=tree)) == bits(tree)


def test_a_number_restored_like_an_array_must_fit_it(left: pw.VirtualSlice, tmp_path: Path) -> None:
    pw.save_state(tmp_path / "state", {"step": 3_000_000_000})
    for like in (jnp.int32(0), pw.put(0, on=left)):
        with pytest.raises(UsageError, match=r"\['step'\] is 3000000000, which int32 cannot hold"):
            pw.restore_state(tmp_path / "state", like={"step": like})
    pw.save_state(tmp_path / "state", {"step": 7}, overwrite=True)
    assert int(pw.restore_state(tmp_path / "state", like={"step": pw.put(0, on=left)})["step"].result()) == 7


def test_floats_are_rounded_as_by_put(left: pw.VirtualSlice, tmp_path: Path) -> None:
    value = np.array([0.1, 1e-50, np.inf, np.nan, -3e38])
    pw.save_state(tmp_path / "state", {"x": value, "n": np.arange(4)})
    found = pw.restore_state(tmp_path / "state", on=left, shardings={"x": None, "n": pw.P("x")})
    assert bits(found) == bits(pw.put({"x": value, "n": np.arange(4)}, on=left))
    assert {shard.data.shape for shard in found["n"].array().addressable_shards} == {(1,)}


def test_simulated_devices_with_values_refuse_them_too(controller: Any, tmp_path: Path) -> None:
    pw.save_state(tmp_path / "state", {"x": np.array([3_000_000_000]), "step": 3_000_000_000})
    with pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=4, values=True):
        place = pw.virtual_slice(4)
        with pytest.raises(UsageError, match=r"\['x'\]\[0\] is 3000000000, which int32 cannot hold"):
            pw.restore_state(tmp_path / "state", on=place)


# ---- keys of dicts


def test_keys_of_several_types_are_refused_with_their_dict(tmp_path: Path) -> None:
    mixed = {"a": [{1: np.ones(3), "b": np.ones(3)}]}
    text = (
        r"the dict \['a'\]\[0\] has keys of several types, 1 \(int\) and 'b' \(str\), which JAX cannot sort. Use keys"
    )
    with pytest.raises(UsageError, match=r"save_state: " + text):
        pw.save_state(tmp_path / "state", mixed)
    pw.save_state(tmp_path / "state", {"a": 1})
    with pytest.raises(UsageError, match=r"restore_state\(.*\): " + text):
        pw.restore_state(tmp_path / "state", like=mixed)


@pytest.mark.parametrize("keys", [(1, 2), (1, True + 1), ("a/b", ".", "..", "\0", "\x1b\r\u2028", "\ud800", "é")])
def test_other_keys_come_back(tmp_path: Path, keys: tuple[Any, ...]) -> None:
    tree = {
        "one": {key: np.full(2, at) for at, key in enumerate(keys)},
        "two": {key: at for at, key in enumerate(keys)},
    }
    pw.save_state(tmp_path / "state", tree)
    found = pw.restore_state(tmp_path / "state")
    assert found["two"] == tree["two"]
    assert {key: value.tolist() for key, value in found["one"].items()} == {key: v.tolist() for key, v in tree["one"].items()}  # fmt: skip


def test_a_key_of_a_hundred_thousand_characters_is_refused_in_few_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is longer than 60000 bytes. Give it another key") as caught:
        pw.save_state(tmp_path / "state", {"x" * 100_000: np.ones(3)})
    assert len(str(caught.value)) < 200


# ---- damage


def test_a_damaged_state_comes_back_right_or_is_refused(left: pw.VirtualSlice, tmp_path: Path) -> None:
    """A smaller run of the command that ``CONTRIBUTING.md`` names."""
    outcomes, wrong = tried(60, 1, tmp_path, left)
    assert wrong == []
    assert outcomes["refused"] > 50


def test_the_leaf_whose_values_are_damaged_is_named(tmp_path: Path) -> None:
    tree = {name: np.random.default_rng(0).normal(size=1000) for name in "abc"}
    pw.save_state(tmp_path / "state", tree)
    files = {file: file.read_bytes() for file in (tmp_path / "state" / "arrays").rglob("*") if file.is_file()}
    named = set()
    for file, data in files.items():
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        name = re.escape(file.relative_to(tmp_path / "state").as_posix())
        with pytest.raises(UsageError, match=rf"the state is damaged: its file {name} has other bytes. This concerns (.*). Restore another copy.") as caught:  # fmt: skip
            pw.restore_state(tmp_path / "state")
        named.update(re.search("concerns (.*). Restore", str(caught.value)).group(1).split(", "))  # type: ignore[union-attr]
        file.write_bytes(data)
    assert named == {"['a']", "['b']", "['c']", "no value of a leaf"}
    assert bits(pw.restore_state(tmp_path / "state")) == bits(tree)


def test_a_file_of_another_length_and_a_lost_folder_are_told(tmp_path: Path) -> None:
    pw.save_state(tmp_path / "state", {"x": np.arange(3)})
    file = tmp_path / "state" / "arrays" / "_METADATA"
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:10])
    with pytest.raises(UsageError, match=rf"its file arrays/_METADATA has 10 bytes instead of {size}\."):
        pw.restore_state(tmp_path / "state")
    (tmp_path / "state" / "arrays").rename(tmp_path / "arrays")
    with pytest.raises(UsageError, match=r"is missing, and \d+ other files as well. This concerns \['x'\]"):
        pw.restore_state(tmp_path / "state")


def without_digests(path: Path, change: Callable[[dict[str, Any]], object] = lambda about: None) -> None:
    """Let a state be of the time before digests."""
    about = json.loads((path / "state.json").read_text())
    del about["digest"], about["files"]
    about["format"] = 1
    change(about)
    (path / "state.json").write_text(json.dumps(about))


def test_an_older_state_opens_with_a_line_that_it_could_not_be_checked(left: pw.VirtualSlice, tmp_path: Path) -> None:
    pw.save_state(tmp_path / "state", {"x": np.arange(4), "step": 3_000_000_000})
    without_digests(tmp_path / "state")
    for on in (None, left):
        with pytest.warns(RuntimeWarning, match=r"restore_state\('.*state'\): the state is older than digests, so it cannot be checked whether its files are as they were written. Save it again to have them.") as told:  # fmt: skip
            found = pw.restore_state(tmp_path / "state", on=on)
        assert [one.filename for one in told] == [__file__]
        assert found["step"] == 3_000_000_000
        assert pw.get(found["x"]).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"shape": [8]}, r"\['x'\] is float32\[8\] in its layout, and float32\[4\] in its files"),
        ({"dtype": "int32"}, r"\['x'\] is int32\[4\] in its layout, and float32\[4\] in its files"),
        ({"path": "['y']"}, r"\['y'\] is float32\[4\] in its layout, and nothing in its files"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*older than digests:RuntimeWarning")
def test_an_older_state_whose_layout_is_not_that_of_its_files_is_refused(
    left: pw.VirtualSlice, tmp_path: Path, change: dict[str, Any], text: str, on: bool
) -> None:
    pw.save_state(tmp_path / "state", {"x": np.arange(4, dtype="f4")})
    without_digests(tmp_path / "state", lambda about: about["leaves"][0].update(change))
    with pytest.raises(UsageError, match=text):
        pw.restore_state(tmp_path / "state", on=left if on else None)


@pytest.mark.filterwarnings("ignore:.*older than digests:RuntimeWarning")
def test_what_orbax_cannot_read_of_an_older_state_is_said_as_well(left: pw.VirtualSlice, tmp_path: Path) -> None:
    pw.save_state(tmp_path / "state", {"x": pw.put(np.random.default_rng(0).normal(size=(64, 64)), on=left)})
    without_digests(tmp_path / "state")
    for file in (tmp_path / "state" / "arrays" / "ocdbt.process_0" / "d").iterdir():
        if file.stat().st_size > 10_000:  # of values
            file.unlink()
    for on in (left, None):
        with pytest.raises(UsageError, match=r"restore_state\('.*state'\): its arrays cannot be read: "):
            pw.restore_state(tmp_path / "state", on=on)
