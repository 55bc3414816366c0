"""Small computations, each nearly of one class, that a calibration runs in chains.

Each takes a state and constants and gives a state of the same shape, so that a chain of nodes is the node again and
again. Shapes are those of one device. Values stay near 1: tiny ones would be slower for no reason of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pathways_nb.cost.work import Work, work_of

AXIS = "x"
_SHAPES = ((16, 256), (64, 128), (128, 256), (256, 256), (128, 512), (256, 512))
"""Rows and width of products."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """One computation for one device.

    Args:
        kind: its class. fn: of the state and constants. arrays: those of one device, the state first.
    """

    kind: str
    fn: Callable[..., Any]
    arrays: tuple[Any, ...]

    def work(self, devices: int) -> Work:
        """What it does on each of so many devices."""
        traced = jax.make_jaxpr(self.fn, axis_env=[(AXIS, devices)])(*self.arrays)
        return work_of(traced, {AXIS: devices})


def _ones(*shape: int, dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


def tiny() -> Kernel:
    """Nothing but a launch."""
    return Kernel("launch", lambda s: s + 1.0, (_ones(8),))


def large(quick: bool) -> Iterator[Kernel]:
    """Long enough for a launch not to count: what one device takes alone, and among others."""
    yield _product(256, 512, np.float32)
    if not quick:
        yield _heavy(2**18)


def operations(quick: bool) -> Iterator[Kernel]:
    """Every class of operations in several sizes; a quick calibration takes fewer classes and sizes."""
    for rows, width in _SHAPES[::2] if quick else _SHAPES:
        yield _product(rows, width, np.float32)
    for exponent in (12, 18) if quick else (12, 15, 18, 20):
        yield _light(2**exponent)
    for exponent in (13, 17) if quick else (11, 14, 17):
        yield _heavy(2**exponent)
    for exponent in (13, 19) if quick else (10, 13, 16, 19):
        yield _summed(2**exponent)
    for width in (128, 512) if quick else (64, 128, 256, 512):
        yield Kernel("movement", lambda s: s.T, (_ones(width, width),))
    if not quick:
        yield from _rarer()


def _rarer() -> Iterator[Kernel]:
    for rows, width in ((64, 128), (128, 256), (256, 256)):
        yield _product(rows, width, jnp.bfloat16)
    for width, channels in ((8, 8), (8, 16), (16, 16), (16, 32)):
        yield _convolved(width, channels)
    for exponent in (8, 10, 12):
        yield _sorted(2**exponent)
    for exponent in (10, 13, 16):
        yield _drawn(2**exponent)


def collectives(devices: int, quick: bool) -> Iterator[Kernel]:
    """Every collective over all devices of an island, from 256 bytes to a megabyte on each."""
    for floats in (2**8, 2**17) if quick else (2**6, 2**12, 2**16, 2**18):
        count = max(1, floats // devices) * devices
        yield Kernel("all-reduce", lambda s: jax.lax.psum(s, AXIS), (_ones(count),))
        yield Kernel("all-gather", lambda s: jax.lax.all_gather(s, AXIS)[0], (_ones(count),))
        yield Kernel("reduce-scatter", _scattered, (_ones(count // devices), _ones(count)))
        yield Kernel("all-to-all", lambda s: jax.lax.all_to_all(s, AXIS, 0, 0), (_ones(devices, count // devices),))
        ring = [(i, (i + 1) % devices) for i in range(devices)]
        yield Kernel("permute", lambda s, ring=ring: jax.lax.ppermute(s, AXIS, ring), (_ones(count),))


def _product(rows: int, width: int, dtype: Any) -> Kernel:
    kind = "matmul" if dtype is np.float32 else "matmul bfloat16"
    return Kernel(
        kind, lambda s, w: s @ w, (_ones(rows, width, dtype=dtype), np.full((width, width), 1 / width, dtype))
    )


def _convolved(width: int, channels: int) -> Kernel:
    def convolve(s: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(s, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    filters = np.full((3, 3, channels, channels), 1 / (9 * channels), np.float32)
    return Kernel("conv", convolve, (_ones(8, width, width, channels), filters))


def _light(size: int) -> Kernel:
    return Kernel("elementwise", lambda s: s * 0.5 + 0.5, (_ones(size),))


def _heavy(size: int) -> Kernel:
    return Kernel("elementwise", lambda s: jax.nn.gelu(s) * 0.5 + 0.5, (_ones(size),))


def _summed(size: int) -> Kernel:
    return Kernel(
        "reduction", lambda s, x: s + x.sum(0), (_ones(size // 64), _ones(64, size // 64 * 64)[:, : size // 64])
    )


def _sorted(size: int) -> Kernel:
    values = np.random.default_rng(0).permutation(size).astype(np.float32)
    return Kernel("sort", lambda s, x: s * 0.5 + jnp.sort(x), (_ones(size), values))


def _drawn(size: int) -> Kernel:
    def draw(s: Any) -> Any:
        key = jax.random.key(s[0].astype(jnp.uint32))  # of the state, or the compiler would draw once for all
        return jax.random.uniform(key, s.shape) + 1.0

    return Kernel("random", draw, (_ones(size),))


def _scattered(s: Any, x: Any) -> Any:
    return s + jax.lax.psum_scatter(x, AXIS, tiled=True)
