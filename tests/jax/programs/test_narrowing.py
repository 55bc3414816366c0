"""Values that JAX holds in fewer bits: rounded as in JAX, or refused where they would become others."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pathways_nb as pw
from pathways_nb.program.narrowing import NarrowingError
from tests.support.computations import on

BIG = 2**40 + 5
REFUSED = {
    "int64": (np.array([1, BIG]), "[1] is 1099511627781, which int32 cannot hold (-2147483648 to 2147483647), and JAX keeps int64 as int32. Pass "
              'smaller numbers, or keep 64 bits: jax.config.update("jax_enable_x64", True).'),
    "negative int64": (np.array([[1, 2], [-(2**31) - 1, 2]]), "[1, 0] is -2147483649, which int32 cannot"),
    "uint64": (np.array([2**32], np.uint64), "[0] is 4294967296, which uint32 cannot hold (0 to 4294967295), and JAX "
               "keeps uint64 as uint32"),
    "int64 scalar": (np.int64(BIG), " is 1099511627781, which int32 cannot"),
    "int64 of no dimensions": (np.array(BIG), " is 1099511627781, which int32 cannot"),
    "int": (BIG, " is 1099511627781, which int32 cannot hold (-2147483648 to 2147483647), and JAX keeps int as int32."),
    "long int": (-(2**70), " is -1180591620717411303424, which int32 cannot"),
    "float64": (np.array([np.nan, 1.0, 1e300]), "[2] is 1e+300, which float32 cannot hold (up to 3.4028e+38), and JAX "
                "keeps float64 as float32"),
    "float64 beside an infinity": (np.array([np.inf, -1e39]), "[1] is -1e+39, which float32 cannot"),
    "float64 scalar": (np.float64(1e39), " is 1e+39, which float32 cannot"),
    "float": (1e39, " is 1e+39, which float32 cannot hold (up to 3.4028e+38), and JAX keeps float as float32"),
    "complex128": (np.array([1e39j]), "[0] is 1e+39j, which complex64 cannot"),
    "longdouble": (np.array([1], np.longdouble), f" is {np.dtype(np.longdouble)}, which JAX does not have. Pass "
                   "array.astype(np.float32), or np.float64 where jax_enable_x64 is on."),
    "longdouble scalar": (np.longdouble(1), f" is {np.dtype(np.longdouble)}, which JAX does not have."),
    "complex longdouble": (np.array([1], np.clongdouble), f" is {np.dtype(np.clongdouble)}, which JAX does not have. "
                           "Pass array.astype(np.complex64), or np.complex128 where"),
    "bytes in another order": (np.array([1], ">f4"), " is >f4, which JAX does not have. Its bytes are in the order of "
                               "another processor: pass array.astype(np.float32)."),
    "records": (np.zeros(1, [("a", "i4")]), " is [('a', '<i4')], which JAX does not have. Pass an array of numbers"),
    "complex": (complex(0, 1e39), " is 1e+39j, which complex64 cannot"),
}  # fmt: skip
HELD = {
    "int64": np.array([-(2**31), 2**31 - 1]), "uint64": np.array([2**32 - 1], np.uint64), "int": 2**31 - 1,
    "empty": np.zeros((0, 3), np.int64), "float64": np.array([1 / 3, 1e-300, np.inf, -np.inf, np.nan]),
    "just above the largest": np.array([np.finfo(np.float32).max * (1 + 1e-9)]), "infinity": float("inf"),
    "complex128": np.array([1 / 3 + 1e-3j, complex(np.inf, 1)]), "bool": np.array([True, False]),
    "float scalar": np.float64(1 / 3), "int32": np.array([5], np.int32),
}  # fmt: skip


def refused(call, *words: str) -> None:
    with pytest.raises(pw.UsageError) as error:
        call()
    for word in words:
        assert word in str(error.value), str(error.value)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_value_that_becomes_another_is_refused_by_its_name(left, kind) -> None:
    value, text = REFUSED[kind]
    same = pw.jit(lambda v: v, on=left, in_shardings=pw.P())
    program = pw.program(lambda tree: same(tree["v"]))
    refused(lambda: pw.put(value, on=left), f"put: the array{text}")
    refused(lambda: same(value), f"same: argument v{text}")
    refused(lambda: program({"v": value}), f"program: argument tree['v']{text}")
    refused(lambda: pw.program(lambda: same(value))(), f"same: argument v{text}")
    with pw.record():
        refused(lambda: same(value), f"same: argument v{text}")


@pytest.mark.parametrize("kind", HELD)
def test_a_value_that_only_loses_precision_is_held_as_in_jax(left, kind) -> None:
    value = HELD[kind]
    same = pw.jit(lambda v: v, on=left, in_shardings=pw.P())
    expected = np.asarray(jnp.asarray(value))
    for found in (same(value), pw.put(value, on=left), pw.program(lambda v: same(v))(value)):
        np.testing.assert_array_equal(np.asarray(found), expected)
        assert found.dtype == expected.dtype


def test_with_64_bits_nothing_is_narrowed(left) -> None:
    with jax.enable_x64(True):
        for value in (np.array([BIG]), np.array([2**63], np.uint64), np.array([1e300]), BIG, 1e300):
            found = pw.put(value, on=left)
            assert found.dtype == np.asarray(value).dtype
            assert found.result() == value


def test_arguments_of_host_work_are_refused(left) -> None:
    reads = pw.host(lambda v: None, on=left)
    refused(lambda: pw.program(lambda: reads(np.array([BIG])))(), "argument v[0] is 1099511627781")


def test_batches_of_pipelines_and_training_steps_are_refused(controller) -> None:
    def squared(y, t):
        return jnp.mean((y - t) ** 2)

    optimizer, weights = optax.sgd(0.1), np.ones(4, np.float32)
    x, labels = np.ones((4, 4), np.float32), np.arange(16).reshape(4, 4)
    islands = [pw.virtual_slice(1, island=index) for index in range(2)]
    pipe = pw.pipeline([lambda p, x: p * x] * 2, on=islands, schedule="gpipe", microbatches=2, loss=squared)
    step, params = pipe.step(optimizer), [weights, weights]
    state = pipe.init(optimizer, params)
    refused(lambda: step(params, state, x, labels + BIG), "[0, 0] is 1099511627781")
    step(params, state, x, labels)[2].result()

    place = pw.virtual_slice(4, island=0)
    sharded = pw.fsdp(lambda p, x, t: squared(p * x, t), weights, on=place, optimizer=optimizer)
    kept = sharded.init(weights)
    refused(lambda: sharded(*kept, x, labels + BIG), "[0, 0] is 1099511627781")
    sharded(*kept, x, labels)[2].result()


def test_simulated_devices_refuse_the_same() -> None:
    with pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=4):
        place = pw.virtual_slice(4)
        refused(lambda: pw.jit(lambda v: v, on=place)(np.array([BIG])), "argument v[0] is 1099511627781")


def test_arrays_of_32_bits_are_not_looked_at(left, monkeypatch) -> None:
    def look(*_: object) -> None:
        raise AssertionError("looked at")

    monkeypatch.setattr(sys.modules[NarrowingError.__module__], "_check", look)
    same = on(left, lambda v: v)
    for value in (np.arange(8, dtype="f4"), np.arange(8, dtype="i4"), jnp.arange(8), same(np.zeros(8, "f4"))):
        same(value).wait()
