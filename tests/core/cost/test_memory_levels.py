"""What a device holds during a launch: each value while it lives, in each pass of a loop, by what it is for."""

from __future__ import annotations

import numpy as np

from pathways_nb.cost.hlo.buffers import buffers_in, live_ranges_in
from pathways_nb.cost.launch.memory_levels import levels_of
from pathways_nb.trace.launch_ops import Op, Ops

BUFFERS = """BufferAssignment:
allocation 0: size 100, parameter 0, shape |f32[25]| at ShapeIndex {}, maybe-live-out:
 value: <1 p @0> (size=100,offset=0): f32[25]{0}
 value: <2 update @0> (size=100,offset=0): f32[25]{0}
allocation 1: size 8, output shape is |(f32[], f32[25])|, maybe-live-out:
 value: <3 loss @0> (size=8,offset=0): f32[2]{0}
allocation 2: size 1000, color 1, preallocated-temp:
 value: <4 fast @0> (size=1000,offset=0): f32[250]{0:S(1)}
allocation 3: size 90, preallocated-temp:
 value: <5 gather{0} @0> (size=10,offset=0): f32[2]{0}
 value: <6 zeros @0> (size=40,offset=10): f32[10]{0}
 value: <7 while{1} (phi) @1> (size=40,offset=10): f32[10]{0}
 value: <8 store @0> (size=40,offset=10): f32[10]{0}
 value: <9 product @0> (size=20,offset=50): f32[5]{0:T(128)}
 value: <10 back @0> (size=20,offset=70): f32[5]{0}
"""
LIVE = """HloLiveRange (max 12):
  InstructionSequence:
    0:p
    1:gather
    2:zeros
    3:product
    4:store
    5:while
    6:back
    7:update
    8:loss
  BufferLiveRange:
    p{}:0-9
    gather{0}:1-3
    zeros{}:2-2
    while{1}:2-6
    store{}:4-4
    product{}:3-4
    back{}:6-7
    update{}:7-9
    loss{}:8-9
    fast{}:2-4
  Live ranges at 3 (peak):
    while{1}: 40 bytes (cumulative: 40 bytes)
    product{}: 20 bytes (cumulative: 60 bytes)
  Stack trace breakdown for peak usage: 60 bytes
"""


def op(name: str, start: float, phase: str = "", work: str = "") -> Op:
    """An op of one second."""
    return Op(name, "", "compute", "", "", 0, 0, 0, 0, start, start + 1, "", phase, work)  # type: ignore[arg-type]


OPS = Ops.from_rows([
    op("gather", 0.0, work="all-gather of 10 B, 1 group of 2"), op("zeros", 1.0, "forward"),
    op("product", 2.0, "forward"), op("store", 3.0, "forward"),
    op("product", 4.0, "forward"), op("store", 5.0, "forward"),
    op("back", 6.0, "backward"), op("update", 7.0, "optimizer"), op("loss", 8.0),
])  # fmt: skip


def test_values_are_held_while_they_live_and_in_each_pass() -> None:
    found = levels_of(OPS, buffers_in(BUFFERS), live_ranges_in(LIVE), "back")
    assert found is not None
    assert found.times.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert {name: one.tolist() for name, one in found.bytes.items()} == {
        "arguments": [100] * 9,
        "results": [8] * 9,
        "gathered": [10, 10, 10, 0, 10, 0, 0, 0, 0],
        "activations": [0, 40, 40, 40, 40, 40, 40, 0, 0],
        "gradients": [0, 0, 0, 0, 0, 0, 20, 20, 0],
        "temporaries": [0, 0, 20, 20, 20, 20, 0, 0, 0],
    }
    assert found.peak == 100 + 8 + 10 + 40 + 20
    assert found.end == 9


def test_what_lies_in_other_memory_or_takes_over_an_argument_is_not_counted_again() -> None:
    found = buffers_in(BUFFERS)
    assert found.bytes == {"arguments": 100, "results": 8, "temporaries": 90}
    assert next(value.name for value in found.values if value.use == "temporaries") == "gather"
    assert {value.shape for value in found.values if value.name == "product"} == {"f32[5]"}


def test_without_ranges_or_buffers_nothing_is_known() -> None:
    assert levels_of(OPS, buffers_in(""), live_ranges_in(LIVE), "") is None
    assert levels_of(OPS, buffers_in(BUFFERS), live_ranges_in(""), "") is None
    assert levels_of(Ops(), buffers_in(BUFFERS), live_ranges_in(LIVE), "") is None


def test_of_very_many_times_the_highest_of_neighbours_stands_for_all(monkeypatch) -> None:
    monkeypatch.setattr("pathways_nb.cost.launch.memory_levels.MOST_LEVELS", 3)
    found = levels_of(OPS, buffers_in(BUFFERS), live_ranges_in(LIVE), "back")
    assert found is not None
    assert found.times.tolist() == [0, 3, 6]
    assert np.sum(list(found.bytes.values()), axis=0).tolist() == [178, 178, 168]


def test_memory_that_goes_over_to_another_use_between_two_ops_is_held_once() -> None:
    """A sum of gradients takes the place of their parts, all before the next op that computes."""
    text = """BufferAssignment:
allocation 0: size 8, output shape is |f32[2]|, maybe-live-out:
 value: <1 update @0> (size=8,offset=0): f32[2]{0}
allocation 1: size 40, preallocated-temp:
 value: <2 back @0> (size=40,offset=0): f32[10]{0}
 value: <3 total @0> (size=40,offset=0): f32[10]{0}
"""
    live = """HloLiveRange (max 4):
  InstructionSequence:
    0:first
    1:back
    2:total
    3:update
  BufferLiveRange:
    back{}:1-2
    total{}:2-3
    update{}:3-4
"""
    total = op("total", 1.0, "backward")._replace(kind="collective")
    ops = Ops.from_rows([op("first", -1.0), op("back", 0.0, "backward"), total, op("update", 2.0, "optimizer")])
    found = levels_of(ops, buffers_in(text), live_ranges_in(live), "")
    assert found is not None
    assert found.peak == 8 + 40
