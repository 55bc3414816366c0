"""A saved log that was damaged, or cut by hand, is refused in a line, before it shows a decision."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pathways_nb.controller import log_text
from pathways_nb.errors import UsageError
from pathways_nb.util.json_text import DamagedError
from tests.core.controller.test_log import used


def held(log: dict[str, Any], kind: str, attribute: str) -> None:
    """An object of a class holds something under a name that is none of its data."""
    (row,) = [row for row in log["objects"] if row[0] == "object" and row[2] == kind]
    row[3].append([attribute, None])


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log["entries"].pop(),
        lambda log: log["entries"].pop(len(log["entries"]) // 2),
        lambda log: log["entries"].clear(),
        lambda log: log["entries"].reverse(),
        lambda log: log["entries"][0].__setitem__(0, 123.0),
        lambda log: log["entries"][-1].__setitem__(2, ""),
        lambda log: log["objects"].append(["list", []]),
        lambda log: log.update(missing=3),
        lambda log: log.update(before=1),
        lambda log: log.update(checksum="0" * 32),
        lambda log: log.update(checksum=7),
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_a_log_that_was_cut_by_hand_is_refused_before_it_shows_a_decision(change, separators) -> None:
    log = json.loads(log_text.as_bytes(used().log()))
    change(log)
    with pytest.raises(
        UsageError, match=r"^the log of the run 'r' is damaged: [^\n]*changed after it was saved[^\n]*$"
    ):
        log_text.of_run(json.dumps(log, separators=separators).encode(), "r")


def test_a_log_that_ends_in_the_middle_is_refused() -> None:
    text = log_text.as_bytes(used().log())
    for end in (0, 1, len(text) // 2, len(text) - 30, len(text) - 1):
        with pytest.raises(DamagedError):
            log_text.from_bytes(text[:end])


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.pop("snapshot"),
        lambda log: log.update(objects=[]),
        lambda log: log["objects"].__setitem__(0, ["object", "os", "system", []]),
        lambda log: log["objects"].__setitem__(0, ["object", "pathways_nb.util.processes", "this_process", []]),
        lambda log: log["objects"].__setitem__(0, ["object", "pathways_nb.controller.log", "Logbook", []]),
        lambda log: log["objects"].__setitem__(
            0, ["object", "pathways_nb.controller.events_and_instructions", "NamedTuple", []]
        ),
        lambda log: log["objects"].__setitem__(0, ["function", "exec", "exec"]),
        lambda log: held(log, "PutRequests", "withdraw"),
        lambda log: held(log, "PutRequests", "__getstate__"),
        lambda log: held(log, "StateMachine", "handle"),
        lambda log: held(log, "Store", "not a name"),
        lambda log: log["objects"].__setitem__(0, ["error", "SystemExit", []]),
        lambda log: log["objects"].__setitem__(0, ["call", "print"]),
        lambda log: log["entries"].append([0.0]),
        lambda log: log["entries"].append(["now", [0], "x"]),
    ],
)
def test_a_damaged_log_is_refused(change) -> None:
    log = log_text.to_json(used().log())
    change(log)
    with pytest.raises(DamagedError):
        log_text.from_bytes(json.dumps(log).encode())
