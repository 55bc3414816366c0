"""All-reduces that complete sums over a split dimension: where they happen, and how many bytes they carry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from pathways_nb.cost.jaxpr.partial_sums import partial_sums
from pathways_nb.cost.jaxpr.sharded_flat import flatten

SIZES = {"model": 4}
COLUMN, ROW = P(None, "model"), P("model")


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.float32)


def exchanges(fn: Callable[..., Any], *shapes: Any, specs: list[Any]) -> list[tuple[str, str, int, int]]:
    """The operation, the kind, the bytes and the number of each."""
    flat = flatten(jax.make_jaxpr(fn)(*shapes), SIZES, specs)
    return [(op.name, one.kind, one.bytes, one.count) for op, found in partial_sums(flat).items() for one in found]


def test_two_products_split_by_columns_and_rows_exchange_once() -> None:
    def fn(x: Any, w1: Any, w2: Any) -> Any:
        return jnp.tanh(x @ w1) @ w2

    found = exchanges(fn, array(8, 16), array(16, 32), array(32, 16), specs=[None, COLUMN, ROW])
    assert found == [("dot_general", "all-reduce", 8 * 16 * 4, 1)]


def test_partial_results_are_added_to_each_other_before_the_exchange() -> None:
    def fn(a: Any, b: Any, w: Any) -> Any:
        return jnp.transpose(a @ w + b @ w).astype(jnp.bfloat16) * 2

    found = exchanges(fn, array(8, 32), array(8, 32), array(32, 16), specs=[COLUMN, COLUMN, ROW])
    assert found == [("convert_element_type", "all-reduce", 8 * 16 * 2, 1)]


def test_what_is_added_to_a_whole_array_is_complete_before() -> None:
    def fn(x: Any, a: Any, w: Any) -> Any:
        return x + a @ w

    found = exchanges(fn, array(8, 16), array(8, 32), array(32, 16), specs=[None, COLUMN, ROW])
    assert found == [("dot_general", "all-reduce", 8 * 16 * 4, 1)]


def test_a_partial_result_with_two_readers_is_complete_before_both() -> None:
    def fn(a: Any, w: Any) -> Any:
        y = a @ w
        return y + y, jnp.tanh(y)

    found = exchanges(fn, array(8, 32), array(32, 16), specs=[COLUMN, ROW])
    assert [name for name, *_ in found].count("dot_general") == 1


@pytest.mark.parametrize("fold", [jnp.sum, jnp.max])
def test_a_fold_over_a_split_dimension_exchanges_its_result(fold: Callable[..., Any]) -> None:
    found = exchanges(lambda x: fold(x, axis=1), array(8, 32), specs=[COLUMN])
    assert [one[1:] for one in found] == [("all-reduce", 8 * 4, 1)]
    assert not exchanges(lambda x: fold(x, axis=0), array(8, 32), specs=[COLUMN])


def test_rows_of_a_split_table_are_added_up_and_a_split_dimension_that_is_lost_is_gathered() -> None:
    found = exchanges(
        lambda table, at: table[at], array(64, 16), jax.ShapeDtypeStruct((8,), np.int32), specs=[ROW, None]
    )
    assert found == [("gather", "all-reduce", 8 * 16 * 4, 1)]
    found = exchanges(lambda x: x.reshape(-1), array(8, 32), specs=[COLUMN])
    assert found == [("reshape", "all-gather", 8 * 32 * 4, 1)]


def test_the_body_of_a_loop_exchanges_as_often_as_it_runs() -> None:
    def fn(x: Any, w1: Any, w2: Any) -> Any:
        return jax.lax.scan(lambda h, ws: (h + jnp.tanh(h @ ws[0]) @ ws[1], None), x, (w1, w2))[0]

    specs = [None, P(None, None, "model"), P(None, "model")]
    found = exchanges(fn, array(8, 16), array(5, 16, 32), array(5, 32, 16), specs=specs)
    assert found == [("scan", "all-reduce", 8 * 16 * 4, 5)]


def test_without_a_split_nothing_is_exchanged() -> None:
    assert not exchanges(lambda a, b: jnp.sum(a @ b), array(8, 16), array(16, 8), specs=[None, None])
