"""Options of XLA that a computation declares reach its executable, and only its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import pathways_nb as pw
from tests.support.closeness import close
from tests.support.computations import names, v

pytestmark = pytest.mark.usefixtures("usual_effort")

KEEP = {"xla_disable_hlo_passes": "cse_barrier_expander"}


def gathered_twice(w):
    """The gradient of a product whose gathered operand is gathered again for the backward pass."""
    again = jax.checkpoint(lambda w: jnp.tanh(jax.lax.all_gather(w, "x", tiled=True)) @ jnp.ones((8, 2)))
    return jax.grad(lambda w: (again(w) ** 2).sum())(w)


def gathers(controller, known) -> list[int]:
    """The number of all-gathers in each executable that is not known yet."""
    compiled = controller.driver.executables._compiled.items()
    return [future.result().call.as_text().count(" all-gather(") for key, future in compiled if key not in known]


def test_an_option_is_counted_in_the_key_of_the_cache(controller, left) -> None:
    plain, kept = (
        pw.shard_map(gathered_twice, on=left, in_specs=pw.P("x"), out_specs=pw.P("x"), compiler_options=options)
        for options in (None, KEEP)
    )
    known = set(controller.driver.executables._compiled)
    plain(v).wait()
    (merged,) = gathers(controller, known)  # on JAX 0.10 the second gather is merged with the first
    close(kept(v), plain(v))
    assert gathers(controller, known) == [merged, 2]


def test_nodes_with_different_options_are_not_fused(left) -> None:
    one = pw.jit(lambda x: x + 1, on=left)
    two = pw.jit(lambda x: x + 1, on=left, compiler_options=KEEP)
    f = pw.program(lambda x: two(two(one(one(x)))), fuse=True)
    close(f(v), v + 4)
    assert names(f.graph(v)) == ["one ×2@left", "two ×2@left"]


def test_an_option_of_one_platform_is_left_out_on_others(controller, left) -> None:
    known, options = (
        set(controller.driver.executables._compiled),
        {"cpu:xla_disable_hlo_passes": "cse_barrier_expander"},
    )
    kept = pw.shard_map(gathered_twice, on=left, in_specs=pw.P("x"), out_specs=pw.P("x"), compiler_options=options)
    kept(v).wait()
    assert gathers(controller, known) == [2]
    pw.jit(lambda x: x * 3, on=left, compiler_options={"gpu:xla_x": 1})(v).wait()  # XLA does not know it


def test_options_are_a_dictionary(left) -> None:
    with pytest.raises(pw.UsageError, match=r"compiler_options='xla_x' is a str; give a dictionary, such as"):
        pw.jit(lambda x: x, on=left, compiler_options="xla_x")


def test_an_option_that_xla_does_not_know_is_named(left) -> None:
    with pytest.raises(Exception, match="No such compile option: 'xla_x'"):
        pw.jit(lambda x: x, on=left, compiler_options={"xla_x": 1})(v).result()
