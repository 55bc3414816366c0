"""Estimates on disk: what is read is what was written, what has no name is not kept, what is damaged is not read."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import pathways_nb as pw
from pathways_datasets import recorded
from pathways_nb.compilers import disk_cache
from pathways_nb.cost.launch.constants import constants
from pathways_nb.cost.launch.launch_forms import LAUNCH
from pathways_nb.cost.launch.op_seconds import LaunchPlace
from pathways_nb.cost.launch.opened_launch import OpenedLaunch, open_launch
from pathways_nb.cost.model import NodeCost
from pathways_nb.runtime.lowering.executables import Executable
from pathways_nb.runtime.sim import kept_estimates
from pathways_nb.util.json_text import DamagedError, Field

TEXT = "h200_cudnn_6x4096_full"


@pytest.fixture(scope="module")
def launch() -> OpenedLaunch:
    """A step that was recorded on a GPU, with its memory."""
    texts = {name: recorded(f"{TEXT}.{name}.txt").decode() for name in ("hlo", "buffers")}
    place = LaunchPlace(pw.chip("gpu_h200_sxm"), [{"process": 0}], 1)
    return open_launch(texts["hlo"], place, constants("gpu_h200_sxm"), buffers=texts["buffers"])


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def again(launch: OpenedLaunch, change: Callable[[dict[str, Any]], None] = lambda found: None) -> OpenedLaunch:
    """A launch that was written and is read again, changed in between."""
    found = json.loads(json.dumps(LAUNCH.write(launch)))
    change(found)
    return LAUNCH.read(Field(found))


def check_same(one: OpenedLaunch, other: OpenedLaunch) -> None:
    """Check that two launches are equal in all that they say."""
    assert list(one.ops) == list(other.ops)
    assert (one.seconds, one.basis, one.notes) == (other.seconds, other.basis, other.notes)
    assert one.memory is not None
    assert other.memory is not None
    assert [getattr(one.memory, name) for name in ("peak", "arguments", "results", "temporaries", "buffers", "refused")] == [
        getattr(other.memory, name) for name in ("peak", "arguments", "results", "temporaries", "buffers", "refused")
    ]  # fmt: skip
    if one.memory.levels is not None and other.memory.levels is not None:
        assert np.array_equal(one.memory.levels.times, other.memory.levels.times)
        assert {name: held.tolist() for name, held in one.memory.levels.bytes.items()} == {
            name: held.tolist() for name, held in other.memory.levels.bytes.items()
        }
    assert (one.memory.levels is None) == (other.memory.levels is None)


def test_a_launch_is_read_as_it_was_written(launch):
    check_same(again(launch), launch)


def test_a_damaged_launch_is_refused(launch):
    with pytest.raises(DamagedError, match="ops has columns that do not belong together"):
        again(launch, lambda found: found["ops"]["label"].append(0))
    with pytest.raises(DamagedError, match="ops has columns that do not belong together"):
        again(launch, lambda found: found["ops"].update(labels=found["ops"]["labels"][:1]))
    with pytest.raises(DamagedError, match=r"seconds\.busy lacks 'dcn'"):
        again(launch, lambda found: found["seconds"]["busy"].pop("dcn"))


def test_an_estimate_is_read_as_it_was_written_and_not_if_it_is_damaged(launch, tmp_path):
    mesh = AbstractMesh((2, 4), ("data", "model"))
    request: Any = SimpleNamespace(mesh=mesh)
    specs = P(), P("data"), P(None, ("data", "model"))
    cost = NodeCost(2.0, 0.5, 1.0, 0.5, "formula", "origin")
    made = Executable(None, tuple(NamedSharding(mesh, spec) for spec in specs), 3e12, 7, 5, None, cost, launch)
    name = kept_estimates.digest_of(("a key", 3))
    assert kept_estimates.read(name, request) is None
    kept_estimates.write(name, made)
    found = kept_estimates.read(name, request)
    assert found is not None
    assert found.out_shardings == made.out_shardings
    assert (found.flops, found.temporary, found.reused, found.cost) == (3e12, 7, 5, cost)
    assert found.opened is not None
    check_same(found.opened, launch)
    disk_cache.write(name, {"flops": "many"})
    assert kept_estimates.read(name, request) is None


def test_what_is_known_by_its_address_has_no_name_and_is_not_kept(launch, tmp_path):
    request: Any = SimpleNamespace(mesh=None)
    assert kept_estimates.digest_of(("pure_callback[callback=<function f at 0x7f12>]",)) == ""
    cost = NodeCost(2.0, 0.5, 1.0, 0.5, "formula", "origin")
    kept_estimates.write("", Executable(None, (), 0.0, 0, 0, None, cost, launch))
    assert not list(tmp_path.rglob("*.gz"))
    assert kept_estimates.read("", request) is None


def test_other_nodes_other_devices_and_another_jax_have_other_names(monkeypatch):
    names = {kept_estimates.digest_of(key) for key in ("one", "other", ("one", 8))}
    monkeypatch.setattr(kept_estimates.jax, "__version__", "0.0.1")
    names.add(kept_estimates.digest_of("one"))
    monkeypatch.setattr(kept_estimates, "_sources", lambda: "changed")
    names.add(kept_estimates.digest_of("one"))
    assert len(names) == 5
