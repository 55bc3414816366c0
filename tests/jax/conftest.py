"""Two computations on two islands, for tests that need no others; and garbage collections that stay short."""

from __future__ import annotations

import gc

import pytest

import pathways_nb as pw
from tests.support.computations import on


@pytest.fixture(autouse=True, scope="module")
def frozen() -> None:
    """Leave out of garbage collections what earlier files left behind: JAX's caches are some million objects.

    What of it becomes a cycle of garbage later stays until the process ends.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def a(left: pw.VirtualSlice) -> pw.Computation:
    double = on(left, lambda v: v * 2)
    return double


@pytest.fixture
def b(right: pw.VirtualSlice) -> pw.Computation:
    increment = on(right, lambda v: v + 1)
    return increment
