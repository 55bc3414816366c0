"""The emulated delay of messages to islands: seen in the record, overlapping, ended by a cancel, refused if it is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

import pathways_nb as pw
from tests.support.closeness import close
from tests.support.computations import v
from tests.support.waiting import dispatchers

LATENCY = 0.02


@pytest.fixture
def chain(controller):
    """Four small stages that take turns on two islands, whatever is attached."""
    left, right = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)
    stages = [pw.jit(lambda x: x + 1, on=place) for place in (left, right, left, right)]

    @pw.program
    def chain(x):
        for stage in stages:
            x = stage(x)
        return x

    return chain


def messages(run: pw.Run) -> list[dict]:
    return [event for event in run.events.of_kind("stall") if event["route"] == "DCN"]


@contextmanager
def sent_at_one_time(controller: pw.Controller) -> Iterator[None]:
    """All messages are taken to be sent now, however long this thread stands still between two of them."""
    now = controller.clock()
    for one in dispatchers(controller):
        one.send = partial(type(one).send, one, sent=now)
    yield
    for one in dispatchers(controller):
        del one.send


def record(chain: pw.Program, dispatch: str) -> tuple[list[dict], pw.Run]:
    with pw.attach("cpu", islands=2, devices_per_island=2, dispatch=dispatch, dcn_latency=LATENCY):
        chain(v).wait()
        run = chain.run(v)
        close(run.outputs, v + 4)
    return messages(run), run


def test_in_sequence_each_stage_waits_for_a_message_of_its_own(chain) -> None:
    found, run = record(chain, "sequential")
    assert [event["island"] for event in found] == [0, 1, 0, 1]
    assert [event["name"] for event in found[:2]] == [
        "message to island 0 on its way", "message to island 1 on its way",
    ]  # fmt: skip
    for event in found:
        assert event["end"] - event["start"] == pytest.approx(LATENCY, rel=0.01)
        assert (event["program"], event["quality"]) == ("chain", "exact")
    ends = sorted(event["end"] for event in run.events.of_kind("compute"))
    for event, before in zip(found[1:], ends, strict=False):
        assert event["start"] >= before, "sent when the stage before was seen to be done"
    assert run.summary().makespan > 4 * LATENCY
    assert run.summary().messages == pytest.approx(4 * LATENCY, rel=0.01)
    assert f"messages on their way {4 * LATENCY * 1e3:.0f} ms" in run.summary_line()


def test_in_parallel_all_is_one_message_to_each_island_and_they_overlap(chain) -> None:
    with pw.attach("cpu", islands=2, devices_per_island=2, dcn_latency=LATENCY) as controller:
        chain(v).wait()
        with sent_at_one_time(controller):
            run = chain.run(v)
    found = messages(run)
    assert sorted(event["island"] for event in found) == [0, 1]
    assert run.summary().messages == pytest.approx(LATENCY)


def test_messages_of_several_programs_overlap(chain) -> None:
    with pw.attach("cpu", islands=2, devices_per_island=2, dcn_latency=LATENCY) as controller:
        chain(v).wait()
        with pw.record() as run, sent_at_one_time(controller):
            pw.wait([chain(v) for _ in range(5)])
    found = messages(run)
    assert len(found) == 10
    for event in found:
        assert event["end"] - event["start"] == pytest.approx(LATENCY), "none waits for the one before"
    assert run.summary().messages == pytest.approx(LATENCY)


def test_without_a_delay_there_are_no_messages(controller, chain) -> None:
    run = chain.run(v)
    assert not messages(run)
    assert run.summary().messages == 0
    assert "message" not in run.summary_line()


def test_what_is_given_up_is_not_waited_for(chain) -> None:
    with pw.attach("cpu", islands=2, devices_per_island=2, dcn_latency=3600) as controller:
        y = chain(v)
        controller.close()
        with pytest.raises((pw.CancelledError, pw.LostError)):
            y.result()


def test_another_delay_is_another_controller(controller) -> None:
    first = pw.attach("cpu", islands=1, devices_per_island=1, dcn_latency=1e-3)
    assert repr(first) == "<controller cpu: 1 island × 1 device, parallel dispatch, messages take 1 ms>"
    assert pw.attach("cpu", islands=1, devices_per_island=1, dcn_latency=np.float64(1e-3)) is first
    second = pw.attach("cpu", islands=1, devices_per_island=1)
    assert second is not first
    assert pw.attach("cpu", islands=1, devices_per_island=1, dcn_latency=0) is second
    assert first.attach_options.as_dict()["dcn_latency"] == 1e-3


@pytest.mark.parametrize("latency", [-1e-3, float("nan"), float("inf"), "1 ms", None, True])
def test_a_delay_that_is_none_is_refused(latency) -> None:
    with pytest.raises(pw.UsageError) as error:
        pw.attach("cpu", dcn_latency=latency)
    assert str(error.value) == (
        f"attach(dcn_latency={latency!r}): a finite number of seconds of at least 0 is needed, and at most 3600, for "
        f"which nobody would wait."
    )
