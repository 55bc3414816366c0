"""Nodes are kept on disk for later kernels and for other islands; nothing is lost where that fails."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import pathways_nb as pw
from pathways_nb.attach.local_attach import executables
from pathways_nb.compilers import disk_cache, kept_executables
from pathways_nb.util import fallbacks
from tests.support.closeness import close
from tests.support.computations import v
from tests.support.hosts_in_process import hosts_in_process

EXPECTED = np.tanh(v).sum() + v


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No cache of the user's, as in a kernel without settings."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with settings(jax_compilation_cache_dir=None, jax_enable_compilation_cache=True):
        yield disk_cache.compiler_cache().folder


@contextmanager
def settings(**values: object) -> Iterator[None]:
    """Settings of JAX in a block; its cache is made anew, since it reads them once."""
    before = {name: getattr(jax.config, name) for name in values}

    def change(to: dict[str, object]) -> None:
        for name, value in to.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()

    change(values)
    try:
        yield
    finally:
        change(before)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the cache had each executable that JAX asked it for."""
    found: list[bool] = []
    get = kept_executables._NodeCache.get

    def asked(self, key):
        answer = get(self, key)
        found.append(answer is not None)
        return answer

    monkeypatch.setattr(kept_executables._NodeCache, "get", asked)
    return found


def kernel(*islands: int) -> None:
    """Run a node with a collective on some islands, as in a kernel that has compiled nothing yet."""
    with mock.patch.dict(executables._compiled, clear=True), mock.patch.dict(kept_executables._cache._keys, clear=True):
        for island in islands:
            node = pw.jit(
                lambda x: jnp.tanh(x).sum() + x, on=pw.virtual_slice(4, island=island), in_shardings=pw.P("x")
            )
            close(node(v), EXPECTED)


def test_a_second_kernel_loads_what_the_first_compiled(controller, answers, folder) -> None:
    kernel(0)
    kernel(0)
    assert answers == [False, True]
    cache = pw.compiler_cache()
    assert (cache.folder, cache.entries) == (folder, 1)
    assert cache.clear() == 1
    kernel(0)
    assert answers == [False, True, False]


def test_the_same_node_on_another_island_is_loaded_and_kept_for_it(controller, answers) -> None:
    kernel(0, 1)
    assert answers == [False, True]
    kernel(1)
    assert answers == [False, True, True]


def test_the_same_node_on_two_islands_at_once_is_compiled_once(controller, answers) -> None:
    places = [pw.virtual_slice(4, island=island) for island in (0, 1)]
    nodes = [pw.jit(lambda x: jnp.tanh(x).sum() + x, on=on, in_shardings=pw.P("x")) for on in places]
    with mock.patch.dict(executables._compiled, clear=True):
        both = pw.program(lambda x: [node(x) for node in nodes])
        for result in both(v):
            close(result, EXPECTED)
    assert sorted(answers) == [False, True]


@pytest.mark.parametrize("how", ["cut", "changed", "of another program"])
def test_a_damaged_entry_costs_nothing_but_time(controller, answers, folder, how) -> None:
    kernel(0)
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    if how == "of another program":  # its checksum is right: JAX finds out
        disk_cache.write_executable(path.stem, zlib.compress(b"not an executable"))
    else:
        path.write_bytes(whole[: len(whole) // 2] if how == "cut" else whole[:-9] + b"x" * 9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel(0)
    assert answers[1] == (how == "of another program")
    kernel(0)
    assert answers[-1], "it was written again"


@pytest.mark.parametrize("as_errors", [False, True])
def test_a_folder_that_cannot_be_written_costs_nothing_but_time(controller, tmp_path, monkeypatch, as_errors) -> None:
    monkeypatch.setattr(fallbacks, "_told", set())
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("error" if as_errors else "always")
        kernel(0)
        kernel(1)
    assert len(said) == (not as_errors)
    assert all("Free some space, or set XDG_CACHE_HOME to another folder." in str(one.message) for one in said)


def test_a_folder_of_the_users_is_the_one_that_is_used(controller, folder, tmp_path) -> None:
    own = tmp_path / "own"
    with settings(jax_compilation_cache_dir=str(own), jax_persistent_cache_min_compile_time_secs=0.0):
        kernel(0)
    assert list(own.glob("jit_pw_*"))
    assert not folder.exists()


@pytest.mark.parametrize("how", [{"jax_enable_compilation_cache": False}, {"jax_compilation_cache_max_size": 0}])
def test_nothing_is_kept_where_the_user_has_disabled_it(controller, folder, how) -> None:
    with settings(**how):
        kernel(0)
    assert not folder.exists()


def test_functions_of_the_users_are_not_kept_and_a_folder_given_later_is_used(controller, folder, tmp_path) -> None:
    with settings(jax_persistent_cache_min_compile_time_secs=0.0):
        kernel(0)
        assert len(list(folder.iterdir())) == 1
        jax.jit(lambda x: x * 17.5)(v)
        assert len(list(folder.iterdir())) == 1
        own = tmp_path / "own"
        jax.config.update("jax_compilation_cache_dir", str(own))
        jax.jit(lambda x: x * 18.5)(v)
        jax.config.update("jax_compilation_cache_dir", None)
    assert list(own.iterdir())


def test_hosts_of_a_cluster_keep_their_nodes(answers) -> None:
    with hosts_in_process(1, 4, 4):
        node = pw.jit(lambda x: jnp.tanh(x).sum() + x, on=pw.virtual_slice(4), in_shardings=pw.P("x"))
        close(node(v), EXPECTED)
    assert answers == [False]
    assert pw.compiler_cache().entries == 1
