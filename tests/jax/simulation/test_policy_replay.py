"""What another policy would have decided: beside a controller that has that policy, and closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.controller.log import Logbook
from pathways_nb.errors import UsageError
from pathways_nb.session import default_controller
from pathways_widgets.explorers.controls_panel import ControlsPanel
from pathways_widgets.figures.decision_figure import sentence_of
from tests.core.widgets.unpacking import columns_sent

LENGTHS = (8e-3, 1e-3, 4e-3, 2e-3, 6e-3, 3e-3)
SIM: dict[str, Any] = {"chip": "tpu_v5p", "islands": 2, "devices_per_island": 1}


def of_two_clients(policy: str) -> pw.Run:
    """Programs of several lengths on one device, of two clients in turn, all known to the controller."""
    with pw.attach("sim", policy=policy, **SIM):
        here = pw.virtual_slice(1, island=0)
        programs = [pw.program(pw.work(each, on=here), name=f"{each * 1e3:g} ms") for each in LENGTHS]
        for program in programs:
            pw.wait(program())
        ann, bob = pw.client("ann"), pw.client("bob")
        with pw.record() as run:
            found = []
            for number, program in enumerate(programs):
                with (ann, bob)[number % 2].acting():
                    found += [program(), program()]
            pw.wait(found)
    return run


def order(decisions: Any) -> list[tuple[str, str]]:
    return [(one.client, one.program) for one in decisions]


@pytest.mark.parametrize("other", ["shortest", "fifo", "stride"])
def test_another_policy_decides_as_a_controller_that_has_it(watchdog, other: str) -> None:
    replay, real = of_two_clients("fifo").replay(other), of_two_clients(other)
    assert order(replay.others) == order(real.steps())
    ends = real.events.of_kind("compute")
    assert replay.seconds[1] == pytest.approx(ends["end"].max(), abs=5e-4)
    for client in ("ann", "bob"):
        assert replay.mean_end(client)[1] == pytest.approx(ends["end"][ends["client"] == client].mean(), abs=5e-4)


def test_the_recorded_policy_decides_the_same_and_the_text_says_what_differs(watchdog) -> None:
    run = of_two_clients("fifo")
    again, shortest = run.replay("fifo"), run.replay("shortest")
    assert (again.untimed, shortest.untimed) == (0, 0)
    assert order(again.decisions) == order(again.others) == order(run.steps())
    assert again.first_difference is None
    assert again.seconds[0] == again.seconds[1] == pytest.approx(2 * sum(LENGTHS), abs=5e-4)
    assert str(again).endswith("no decision differs")
    was, becomes = shortest.first_difference or (None, None)
    assert was is not None
    assert becomes is not None
    assert was.program != becomes.program
    first = str(shortest).splitlines()[0]
    assert first == "the last call ends after 48.1 ms under fifo, 48.1 ms under shortest (both simulated)"
    assert shortest.mean_end("bob")[1] < shortest.mean_end("bob")[0]


def test_both_policies_are_played_from_the_first_decision_that_differs(watchdog, tmp_path) -> None:
    run = of_two_clients("fifo")
    replay = run.replay("shortest")
    player = replay.explore()
    assert player.pointed == replay.first_difference
    panel = ControlsPanel(player)
    assert {f"under {name}" for name in replay.names} <= {*player.words.splitlines()}
    for step in (player.step, player.step + 1, player.step):
        player.step = step
        both: Any = player.pointed
        assert columns_sent(panel.figure, "timeline_step")["x0"] == [one.at for one in both]
        starts = columns_sent(panel.figure, "timeline_chosen")["left"]
        assert all(start >= one.at - 1e-9 for start, one in zip(starts, both, strict=True))
        assert panel.figure.headline.startswith(f"fifo: {both[0].chosen} — shortest: ")
    at = replay.decisions.index(replay.first_difference[0])  # type: ignore[index, arg-type]
    assert player.summary.startswith(f"Decision {at + 1} of {len(replay.decisions)}; ")
    player.which = "that differ"
    assert (player.step, player.pointed) == (1, replay.first_difference)
    assert 0 < player.steps < len(replay.decisions)
    # What is drawn of the recorded policy ends when its calls do.
    events, devices = replay.events.of_kind("compute"), len(replay.islands)
    for islands, last in ((range(devices), replay.seconds[0]), (range(devices, 2 * devices), replay.seconds[1])):
        mine = events.select(np.isin(events["island"], islands))
        assert mine["end"].max() == pytest.approx(last)
        assert len(mine) == 2 * len(LENGTHS)
    player.savefig(tmp_path / "both.svg")
    assert "under shortest" in (tmp_path / "both.svg").read_text("utf-8")
    same = run.replay("fifo").explore()
    assert same.summary.startswith(f"Decision 1 of {same.steps}; none differs.")
    assert sentence_of(same.pointed, same.replay.names) == f"fifo, both times: {same.pointed[0].chosen}"
    alike = next(pair for pair in player.pairs if pair[0].chosen == pair[1].chosen)
    assert sentence_of(alike, replay.names) == f"fifo and shortest alike: {alike[0].chosen}", "said once"


def test_a_call_waits_for_what_it_reads_on_another_island(watchdog) -> None:
    with pw.attach("sim", **SIM):
        f, g = (pw.work(5e-3, on=pw.virtual_slice(1, island=island)) for island in (0, 1))
        first, second = pw.program(lambda x: f(x), name="first"), pw.program(lambda x: g(x), name="second")
        pw.wait(second(first(1.0)))
        with pw.record() as run:
            pw.wait(second(first(1.0)))
    ends = {each.program: each.other_policy for each in run.replay("shortest").ends.values()}
    assert ends["first"] == pytest.approx(5e-3, abs=5e-4)
    assert ends["second"] - ends["first"] == pytest.approx(5e-3, abs=1e-9)


def test_a_saved_run_is_replayed_and_unknown_names_are_refused(watchdog, tmp_path) -> None:
    run = of_two_clients("stride")
    run.save(tmp_path / "two.run")
    assert str(pw.load(tmp_path / "two.run").replay("fifo")) == str(run.replay("fifo"))
    with pytest.raises(UsageError, match="policy='shortst': choose one of"):
        run.replay("shortst")
    with pytest.raises(UsageError, match=r"mean_end\('carol'\): no such client called; 'ann', 'bob' did."):
        run.replay("fifo").mean_end("carol")


def test_values_that_wait_for_memory_are_not_replayed(watchdog) -> None:
    with pw.attach("sim", hbm=1e6, **SIM), pw.record() as run:
        pw.put(np.ones((64, 64), np.float32), on=pw.virtual_slice(1, island=0))
    with pytest.raises(UsageError, match=r"replay\(policy=\): .* waited for memory when it was put, and under another"):
        run.replay("fifo")


def test_nodes_that_the_recording_did_not_carry_out_are_said(watchdog) -> None:
    with pw.attach("sim", policy="fifo", **SIM):
        here = pw.virtual_slice(1, island=0)
        long, short = (pw.program(pw.work(seconds, on=here), name=f"{seconds * 1e3:g} ms") for seconds in (9e-3, 1e-3))
        pw.wait([long(), short()])
        ann, bob = pw.client("ann"), pw.client("bob")
        with pw.record() as run:
            with ann.acting():
                made = [long() for _ in range(6)]
            with bob.acting():
                lost = [short() for _ in range(6)]
            pw.wait(made[:2])
            bob.close()
            pw.wait(made)
            del lost
    replay = run.replay("shortest")
    # Bob's calls that ``fifo`` had not carried out when he left, and ``shortest`` had.
    assert replay.untimed > 0
    assert f"{replay.untimed} nodes took no time here, since the recording has none of them" in str(replay)


def logbook() -> Logbook:
    """Of the controller that is attached."""
    session = default_controller.peek()
    assert session is not None
    book = session.driver.event_loop.logbook
    assert book is not None
    return book


def test_the_other_policy_decides_from_the_beginning_of_the_recording_on(watchdog) -> None:
    with pw.attach("sim", policy="fifo", **SIM):
        here = pw.virtual_slice(1, island=0)
        long, short = (pw.program(pw.work(seconds, on=here), name=f"{seconds * 1e3:g} ms") for seconds in (9e-3, 1e-3))
        pw.wait([long(), short()])
        with pw.client("ann").acting():
            first, *others = [long() for _ in range(5)]
        with pw.client("bob").acting():
            others += [short() for _ in range(5)]
        pw.wait(first)
        with pw.record() as run:
            pw.wait(others)
    replay = run.replay("shortest")
    # Those that were enqueued before it are not decided again, whatever the other policy would have chosen.
    assert order(replay.decisions) == order(run.steps())
    assert sorted(order(replay.others)) == sorted(order(replay.decisions)) != order(replay.others)


def test_what_is_under_way_takes_what_is_left_of_it(watchdog) -> None:
    with pw.attach("sim", **SIM):
        logbook().least = 0  # so that the log begins when the recording does
        long, short = (
            pw.program(pw.work(seconds, on=pw.virtual_slice(1, island=island)), name=f"{seconds * 1e3:g} ms")
            for seconds, island in ((50e-3, 0), (20e-3, 1))
        )
        pw.wait([long(), short()])
        under_way = long()
        pw.wait(short())
        with pw.record() as run:
            pw.wait([long(), under_way])
    # Of the call before it, 30 ms are left.
    assert run.replay("stride").seconds[0] == pytest.approx(80e-3, abs=1e-3)


def test_calls_that_fail_or_are_cancelled_have_no_end(watchdog) -> None:
    with pw.attach("sim", **SIM):
        work = pw.work(5e-3, on=pw.virtual_slice(1, island=0))
        work.name = "work"
        program = pw.program(work, name="program")
        ann = pw.client("ann")
        with pw.record() as run:
            with pw.inject_fault("work", times=1), pytest.raises(pw.NodeError):
                program().result()
            kept = program()
            with ann.acting():
                made = [program() for _ in range(4)]
            ann.close()
            pw.wait(kept)
            del made
    assert [(ends.client, call) for call, ends in run.replay("fifo").ends.items()] == [("", 1)]


def test_a_policy_that_fails_is_an_error_and_does_not_look_fast(watchdog) -> None:
    def broken(ready: Any, state: Any) -> Any:
        raise ValueError("not\ntoday")

    def nothing(ready: Any, state: Any) -> Any:
        return None

    run = of_two_clients("fifo")
    with pytest.raises(UsageError, match=r"after [\d.]+ ms, policy broken raised ValueError: not\\ntoday \(.*\)\.$"):
        run.replay(broken)
    with pytest.raises(UsageError, match=r"policy nothing \(.*\) returned a NoneType that is not one of"):
        run.replay(nothing)


def test_a_policy_that_is_never_asked_is_said(watchdog) -> None:
    def broken(ready: Any, state: Any) -> Any:
        raise ValueError("not today")

    with pw.attach("sim", **SIM), pw.record() as run:
        pw.wait(pw.program(pw.work(1e-3, on=pw.virtual_slice(1, island=0)), name="alone")())
    replay = run.replay(broken)
    assert not replay.was_asked
    assert "  broken was never asked: there was never more than one computation to choose from" in str(replay)
    assert of_two_clients("fifo").replay("shortest").was_asked


def test_a_long_recording_says_how_much_is_forgotten(watchdog) -> None:
    with pw.attach("sim", **SIM):
        logbook().most = 50
        program = pw.program(pw.work(1e-4, on=pw.virtual_slice(1, island=0)), name="program")
        with pw.record() as run:
            for _ in range(10):
                pw.wait([program() for _ in range(10)])
    replay = run.replay("shortest")
    assert run.log is not None
    assert replay.missing == run.log.missing > 0
    assert f"without the first {replay.missing} events of the recording" in str(replay)
    assert len(replay.decisions) >= len(replay.ends) > 0
