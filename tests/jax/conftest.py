"""Two computations on two islands, for tests that need no others."""

from __future__ import annotations

import pytest

import pathways_nb as pw
from tests.support.computations import on


@pytest.fixture
def a(left: pw.VirtualSlice) -> pw.Computation:
    return on(left, lambda v: v * 2)


@pytest.fixture
def b(right: pw.VirtualSlice) -> pw.Computation:
    return on(right, lambda v: v + 1)
