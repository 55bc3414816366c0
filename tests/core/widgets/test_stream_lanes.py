"""A device whose streams are told has a lane for each, with the copies on it."""

from __future__ import annotations

import pytest

import pathways_nb as pw
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import Label, Row
from pathways_widgets.timeline.lanes import MARGIN, Lanes, streams_of
from pathways_widgets.timeline.op_view import OpTimeline
from pathways_widgets.timeline.timeline_view import Timeline


def on(stream: str, kind: str = "compute", device: int = 0, island: int = 0) -> Label:
    return Label(kind, f"{kind} {stream}", island=island, device=device, devices=1, stream=stream)


LABELS = [on("stream 20"), on("stream 7"), on("stream 7", "transfer"), on("", device=1), on("stream 7", device=2)]


def made(labels) -> pw.Run:
    record = Record()
    for at, label in enumerate(labels):
        record.add(Row(label, float(at), at + 1.0, quality="exact"))
    return pw.Run("r", (3,), record, finished=True)


def test_streams_are_in_the_order_of_their_numbers() -> None:
    assert streams_of(LABELS, (3,)) == ((("stream 7", "stream 20"), (), ("stream 7",)),)
    assert streams_of([on("")], (3,)) == ()
    assert streams_of([on(f"stream {n}") for n in range(40)], (1,)) == (), "more lanes than fit"
    assert streams_of(LABELS, (64, 64)) == ()


def test_each_stream_is_a_lane_with_a_name() -> None:
    lanes = Lanes((3,), streams=streams_of(LABELS, (3,)))
    top, bottom = lanes.devices(0)
    assert bottom - top == pytest.approx(4)
    labels = [lanes.labels[at] for at in sorted(lanes.labels)]
    assert labels == ["host", "island 0 · dev 0 · stream 7", "stream 20", "island 0 · dev 1",
                      "island 0 · dev 2 · stream 7", "busy", "transfers"]  # fmt: skip
    assert lanes.band("compute", 0, 0, 1, "stream 20") == pytest.approx((top + 1 + MARGIN, top + 2 - MARGIN))
    assert lanes.band("transfer", 0, 0, 1, "stream 7") == pytest.approx((top + MARGIN, top + 1 - MARGIN))
    assert lanes.band("compute", 0, 0, 1) == pytest.approx((top + MARGIN, top + 2 - MARGIN)), "all of a device"
    assert lanes.band("compute", 0, 1, 2) == pytest.approx((top + 2 + MARGIN, bottom - MARGIN))
    assert lanes.band("transfer", 0, 0, 1) == Lanes((3,), streams=lanes.streams).band("transfer", 0, 1, 1, "")


@pytest.mark.parametrize("view", [Timeline, OpTimeline])
def test_boxes_are_on_the_lanes_of_their_streams(view) -> None:
    drawn = view((3,))
    boxes = drawn.update(made(LABELS))["timeline_boxes"]
    top = drawn.lanes.devices(0)[0]
    assert [int(edge - top) for edge in boxes["top"].tolist()] == [1, 0, 0, 2, 3]
    assert len(drawn.sources["timeline_labels"]["y"]) == len(drawn.lanes.labels)


def test_a_comparison_has_streams_on_the_side_that_tells_them() -> None:
    own, foreign = made([on("", device=1)]), made(LABELS)
    view = Timeline((3, 3), names=("own 0", "foreign 0"))
    view.update(pw.compare(own, foreign))
    assert view.lanes.streams[0] == ((), (), ())
    assert view.lanes.streams[1][0] == ("stream 7", "stream 20")
    assert view.lanes.devices(0)[1] - view.lanes.devices(0)[0] == pytest.approx(3)
    assert view.lanes.devices(1)[1] - view.lanes.devices(1)[0] == pytest.approx(4)
