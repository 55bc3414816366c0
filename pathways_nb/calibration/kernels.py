"""Small computations, each nearly of one class, that a calibration runs in chains.

Each takes a state and constants and returns a state of the same shape, so that a chain of nodes repeats one node. A
node must last longer than its launch, which would hide it, so small computations are repeated within a node. Products
use one matrix after another, as a model does, since one alone would stay in a cache; in others each repetition depends
on the one before, or a compiler would do it once for all. Shapes are those of one device. Values stay near 1, because
arithmetic on denormal numbers would be slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pathways_nb.cost.jaxpr.node_work import Work, work_of

AXIS = "x"
_PRODUCTS = (16, 256), (96, 200), (256, 384)
_GRADIENTS = (48, 144), (128, 256), (96, 384)
"""Rows and width."""
_MATRICES = 8
"""Most matrices of a product, used one after another."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """One computation for one device.

    Args:
        kind: its class of operations, or its collective.
        fn: function of the state and constants, which returns the state.
        arrays: those of one device, the state first.
        repeats: repetitions within a node.
    """

    kind: str
    fn: Callable[..., Any]
    arrays: tuple[Any, ...]
    repeats: int = 1

    def repeated(self, state: Any, *constants: Any) -> Any:
        """Return the state after all repetitions, which is what a node computes."""
        # No loop where nothing is repeated: it has a cost of its own, which is long compared with a tiny node's.
        if self.repeats == 1:
            return self.fn(state, *constants)
        return jax.lax.fori_loop(0, self.repeats, lambda _, state: self.fn(state, *constants), state)

    def work(self, devices: int) -> Work:
        """Return the work of a node on each of so many devices."""
        # Of one device: the axis has a size, but no mesh is needed to count the work.
        traced = jax.make_jaxpr(self.repeated, axis_env=[(AXIS, devices)])(*self.arrays)
        return work_of(traced, {AXIS: devices})


def _often(each: float, enough: float) -> int:
    """Return how often to repeat work of this size so that a node does enough; 1 to 256."""
    return int(min(max(enough // each, 1), 256))


def _ones(*shape: int, dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


def tiny() -> Kernel:
    """Return a kernel that is nothing but a launch."""
    return Kernel("launch", lambda s: s + 1.0, (_ones(8),))


def medium(nodes: int) -> Kernel:
    """Return work for one node of which each of ``nodes`` equal parts lasts longer than a launch."""
    return replace(_product(64, 128, np.float32, 4), repeats=nodes)


def large(quick: bool) -> Iterator[Kernel]:
    """Yield kernels so long that a launch does not count, to compare one device alone with one among others."""
    yield _product(256, 512, np.float32)
    if not quick:
        yield _heavy(2**16)


def operations(quick: bool) -> Iterator[Kernel]:
    """Yield every class of operations in several sizes; a quick calibration has fewer classes and sizes."""
    for rows, width in _PRODUCTS[:2] if quick else _PRODUCTS:
        yield _product(rows, width, np.float32)
    for rows, width in _GRADIENTS[:1] if quick else _GRADIENTS:
        yield _gradient(rows, width)
    for exponent in (14, 18) if quick else (12, 14, 16, 18, 20):
        yield _light(2**exponent)
    for exponent in (15,) if quick else (11, 14, 17):
        yield _heavy(2**exponent)
    for exponent in (13, 17) if quick else (11, 14, 17):
        yield _transcendental(2**exponent)
    for exponent in (13, 17) if quick else (13, 15, 17, 19):
        yield _summed(2**exponent, exponent % 4 // 2)
    for width in (128, 512) if quick else (64, 128, 256, 512):
        yield Kernel("movement", lambda s: s.T, (_ones(width, width),), _often(width**2, 2**18))
    if not quick:
        yield from _rarer()


def _rarer() -> Iterator[Kernel]:
    """Yield the classes that only a full calibration measures."""
    for rows, width in ((64, 128), (128, 256), (256, 256)):
        yield _product(rows, width, jnp.bfloat16)
    for width, channels in ((8, 8), (8, 16), (16, 16), (16, 32)):
        yield _convolved(width, channels)
    for exponent in (8, 10, 12):
        yield _sorted(2**exponent)
    for exponent in (10, 13, 16):
        yield _drawn(2**exponent)


def collectives(devices: int, quick: bool) -> Iterator[Kernel]:
    """Yield every collective over all devices of an island, from 256 bytes to a megabyte on each.

    Args:
        devices: of the island.
        quick: whether to take fewer sizes.
    """
    # Both ends: the time before any exchange shows in the smallest, the bandwidth in the largest.
    for floats in (2**8, 2**17) if quick else (2**6, 2**12, 2**16, 2**18):
        count = max(1, floats // devices) * devices
        # All-to-all and reduce-scatter cut an array into as many equal parts as there are devices.
        parts, often = (devices, count // devices), min(16, _often(count, 2**18))
        ring = [(i, (i + 1) % devices) for i in range(devices)]
        yield Kernel("all-reduce", lambda s: jax.lax.psum(s, AXIS), (_ones(count),), often)
        yield Kernel("all-gather", lambda s: jax.lax.all_gather(s, AXIS)[0], (_ones(count),), often)
        yield Kernel("reduce-scatter", _scattered, (_ones(count // devices), _ones(count)), often)
        yield Kernel("all-to-all", lambda s: jax.lax.all_to_all(s, AXIS, 0, 0), (_ones(*parts),), often)
        yield Kernel("permute", lambda s, ring=ring: jax.lax.ppermute(s, AXIS, ring), (_ones(count),), often)


def _product(rows: int, width: int, dtype: Any, matrices: int = 0) -> Kernel:
    """Return a product with one matrix after another.

    Args:
        rows: of the state.
        width: of the state and of the square matrices.
        dtype: float32 or bfloat16.
        matrices: their number; 0 for as many as make a node long enough.
    """
    kind = "matmul" if dtype is np.float32 else "matmul bfloat16"
    matrices = matrices or min(_MATRICES, _often(rows * width**2, 2**23))
    # Each row sums to 1, so a state of ones stays one.
    weights = [np.full((width, width), 1 / width, dtype) for _ in range(matrices)]
    return Kernel(kind, lambda s, *ws: reduce(jnp.matmul, ws, s), (_ones(rows, width, dtype=dtype), *weights))


def _gradient(rows: int, width: int) -> Kernel:
    """Return steps of gradient descent on a sum of squares, one batch after another.

    A product with a transposed first factor takes longer than others (on CPU by half, measured); of the products of a
    training step it is every third.
    """
    batches = [
        np.full((rows, width), 1 / width, np.float32) for _ in range(min(_MATRICES, _often(rows * width**2, 2**22)))
    ]

    def descend(weights: Any, *batches: Any) -> Any:
        return reduce(lambda w, x: w - x.T @ (x @ w), batches, weights)

    return Kernel("matmul", descend, (_ones(width, width), *batches))


def _convolved(width: int, channels: int) -> Kernel:
    def convolve(s: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(s, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    # Each filter sums to 1, so values within stay 1.
    filters = np.full((3, 3, channels, channels), 1 / (9 * channels), np.float32)
    often = _often(8 * width**2 * 9 * channels**2, 2**20)
    return Kernel("conv", convolve, (_ones(8, width, width, channels), filters), often)


def _light(size: int) -> Kernel:
    """Return elementwise work of two operations on each element."""
    return Kernel("elementwise", lambda s: s * 0.5 + 0.5, (_ones(size),), _often(size, 2**18))


def _heavy(size: int) -> Kernel:
    """Return elementwise work of many operations on each element: a polynomial of degree 13."""

    def polynomial(s: Any) -> Any:
        # 1 is a fixed point of each step, as of ``_light``.
        value = s
        for _ in range(12):
            value = value * s * 0.5 + 0.5
        return value

    return Kernel("elementwise", polynomial, (_ones(size),), _often(size, 2**18))


def _transcendental(size: int) -> Kernel:
    return Kernel("transcendental", lambda s: jnp.exp(jnp.tanh(s)) * 0.4, (_ones(size),), _often(size, 2**16))


def _summed(size: int, axis: int) -> Kernel:
    """Return a sum over rows, as for a bias (``axis`` 0), or within them, as in a softmax."""
    # The state is the sum itself and scales the next one, so that repetitions depend on each other.
    shape = (64, size // 64) if axis == 0 else (size // 64, 64)

    def total(s: Any, x: Any) -> Any:
        return s * 0.5 + (x * jnp.expand_dims(s, axis)).sum(axis) / 128

    return Kernel("reduction", total, (_ones(size // 64), _ones(*shape)), _often(size, 2**20))


def _sorted(size: int) -> Kernel:
    # In random order, since some algorithms are faster on sorted values; scaled by the state, as ``_scattered`` is.
    values = np.random.default_rng(0).permutation(size).astype(np.float32)
    return Kernel("sort", lambda s, x: s * 0.5 + jnp.sort(x * s[0]), (_ones(size), values), _often(size, 2**11))


def _drawn(size: int) -> Kernel:
    def draw(s: Any) -> Any:
        key = jax.random.key(s[0].astype(jnp.uint32))  # from the state, or the compiler would draw only once
        return jax.random.uniform(key, s.shape) + 1.0

    return Kernel("random", draw, (_ones(size),), _often(size, 2**15))


def _scattered(s: Any, x: Any) -> Any:
    # Scaled by the state, so that each repetition depends on the one before and is not left out.
    return s * 0.5 + jax.lax.psum_scatter(x * s[0], AXIS, tiled=True)
