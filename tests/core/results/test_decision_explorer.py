"""The player of a run's decisions, from a log alone: what it says at each step, and what it points at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import traitlets

from pathways_nb.controller.decisions import decisions
from pathways_nb.controller.events_and_instructions import Completed, Event, Submitted
from pathways_nb.controller.log import Logbook
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.errors import UsageError
from pathways_nb.results.decision_explorer import DecisionExplorer, Decisions
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_widgets.explorers.controls_panel import ControlsPanel
from tests.core.controller.imagined_devices import plan_of
from tests.core.widgets.fake_run import FakeRun
from tests.core.widgets.unpacking import columns_sent

LONG = plan_of([0])
"""A program that takes a second, of which no more than two fit on its island while clients compete."""


def of_two_clients(missing: int = 0, clients: tuple[str, str] = ("a", "b")) -> Decisions:
    """Six calls of two clients, of which two go out at once and the others as devices become free."""
    book = Logbook(StateMachine(devices=(1,)))
    start = book.begin()
    told: list[tuple[float, Event]] = [(1.0, Submitted(9, "", LONG, (), (9,), (4,))), (2.0, Completed(9, 0, 0, 1, 1.0))]
    told += [(3.0, Submitted(run, clients[run % 2], LONG, (), (run,), (4,))) for run in range(6)]
    told += [(4.0 + run, Completed(run, 0, 0, 1, 1.0)) for run in range(2)]
    for now, event in told:
        book.handle(event, now)
    (node,) = (gang.node for gang in LONG.gangs[0])
    label = Label("compute", "f", "p", node=node, island=0, device=0, devices=1)
    rows = [Row(label, 3.0 + run, 4.0 + run, run=run) for run in range(6)]
    fake = FakeRun([], Events.from_rows(rows), islands=(1,), name="two")
    return Decisions(decisions(book.end(start), 1.0), fake, 1.0, missing)


@pytest.fixture
def player() -> DecisionExplorer:
    return of_two_clients().explore()


def test_each_step_says_what_was_ready_what_the_policy_saw_and_what_waits(player: DecisionExplorer) -> None:
    player.step = player.steps
    assert player.summary == f"Decision {player.steps} of {player.steps}."
    lines = player.words.splitlines()
    assert lines[0] == "happened  island 0 has done a part of run 1"
    assert lines[2] == "rule      the policy chose it of 2 computations"
    ready = lines[lines.index(next(line for line in lines if "called before" in line)) :]
    assert [line[0] for line in ready[1:3]].count("→") == 1
    assert "the policy saw  device_seconds  share  priority  passed" in lines
    waits = lines.index(next(line for line in lines if line.startswith("waits ")))
    assert any(line.endswith("its turn") for line in lines[waits:])
    player.step -= 1
    assert player.words.splitlines() != lines
    player.step = 0
    assert (player.words, player.pointed) == ("", None)


def test_a_rule_and_a_client_choose_the_steps(player: DecisionExplorer) -> None:
    everything = player.steps
    panel = ControlsPanel(player)
    player.step = everything
    player.rule = "only"
    assert (player.steps, player.step, panel.slider.value, panel.slider.max, panel.play.max) == (1, 1, 1, 1, 1)
    player.rule = "any"
    assert (player.step, panel.slider.value, panel.slider.max) == (everything,) * 3, "back to where the user was"
    player.rule, player.client = "policy", "a"
    here: Any = player.pointed
    assert (here.rule, here.client) == ("policy", "a")
    assert player.summary.startswith(f"Decision {player.decisions.index(here) + 1} of {everything}, ")
    player.rule, player.client = "policy", "no client"
    assert player.pointed is None
    assert (player.steps, player.summary) == (0, "No such decision.")
    with pytest.raises(traitlets.TraitError, match="client='carol': choose one of any, no client, a, b"):
        player.client = "carol"


def test_the_figure_points_at_the_time_and_at_what_was_enqueued(player: DecisionExplorer) -> None:
    panel = ControlsPanel(player)
    for step in (*range(1, player.steps + 1), player.steps - 1):
        player.step = step
        decision: Any = player.pointed
        assert columns_sent(panel.figure, "timeline_step")["x0"] == [decision.at]
        chosen = columns_sent(panel.figure, "timeline_chosen")
        # The first call ran before the events that this run has.
        assert chosen["left"] == ([] if decision.call == 9 else [3.0 + decision.call])
        assert panel.figure.headline == f"{decision.chosen} — {decision.why}"
        assert panel.figure.description == f"two: {panel.figure.headline}"
        assert panel.words.value.endswith("</pre>")
    back, on = (button for button in panel.children[-2].children if getattr(button, "description", "") in ("◀", "▶"))
    before = panel.words.value
    back.click()
    assert panel.words.value != before
    on.click()
    assert panel.words.value == before
    player.step = 0
    assert columns_sent(panel.figure, "timeline_step")["x0"] == []
    assert panel.figure.headline == player.decisions.run.headline()


def test_a_zoom_keeps_the_mark(player: DecisionExplorer) -> None:
    panel = ControlsPanel(player)
    at = columns_sent(panel.figure, "timeline_step")
    panel.figure.view = [3.5, 4.5]
    assert columns_sent(panel.figure, "timeline_step") == at
    assert len(columns_sent(panel.figure, "timeline_boxes")["left"]) < 6
    panel.figure.brushed = [3.0, 4.0]
    assert "to 4 s" in panel.figure.totals
    page = panel.figure.json_item_with_data()
    assert np.isclose(len(panel.figure.drawing.sources["timeline_boxes"]["left"]), 6), "a page has all"
    assert page["headline"] == panel.figure.headline


def test_what_is_forgotten_is_said(tmp_path: Path) -> None:
    found = of_two_clients(missing=70)
    assert repr(found).endswith("; the decisions at the first 70 events of the recording are forgotten>")
    player = found.explore()
    assert player.summary.endswith("; the decisions at the first 70 events of the recording are forgotten.")
    player.savefig(tmp_path / "player.svg")
    drawn = (tmp_path / "player.svg").read_text("utf-8")
    assert player.pointed is not None
    assert player.pointed.event in drawn


def test_a_script_prints_how_many_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    found = of_two_clients()
    found.show()
    assert capsys.readouterr().out == f"{found!r}\n"
    assert repr(found).startswith(f"<{len(found)} decisions of run 'two'; 2 by rule 'alone'; 1 by rule 'only'; ")
    nothing = Decisions([], found.run)
    assert repr(nothing) == "<0 decisions of run 'two'>"
    assert (nothing.explore().step, nothing.explore().summary) == (0, "No such decision.")


def test_a_choice_that_there_is_none_of_and_a_step_beyond_the_last_are_refused(player: DecisionExplorer) -> None:
    with pytest.raises(UsageError, match=r"^DecisionExplorer: there is no 'stepp' to set\. Did you mean 'step'\?"):
        player.stepp = 3  # type: ignore[attr-defined]
    last = player.steps
    for step in (-1, last + 1, 10**9):
        with pytest.raises(traitlets.TraitError, match=f"^step={step}: choose a number from 0 to {last}$"):
            player.step = step
    assert player.step == 1
    panel = ControlsPanel(player)
    player.step, player.rule = last, "only"
    panel.slider.max = last
    panel.slider.value = last
    assert player.step == player.steps == 1, "a browser that does not know yet that there are fewer"


def test_names_with_ends_of_lines_stay_on_their_lines() -> None:
    found = of_two_clients(clients=("a\nb", "c\x1b[2J"))
    player = found.explore()
    player.step = player.steps
    for text in (player.words, str(found[-1]), repr(player)):
        assert "a\\nb" in text
        assert "\x1b" not in text
    lines = player.words.splitlines()
    assert [line[0] for line in lines if " of plan, run" in line].count("→") == 1
    assert "\n" not in found[-1].chosen
