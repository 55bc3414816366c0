"""Question of notebook 10: the speed-up that a critical path allows when one kind of node takes no time.

The answer comes from the reader's own run on simulated devices, so it does not depend on the machine.
"""

from __future__ import annotations

from typing import Any

from pathways_nb.course.question import NotYetError, Question, is_near
from pathways_nb.results.opened_runs import runs

_ADDS = "add_any"
"""Name of the nodes that add the gradients of microbatches."""


def _part() -> float:
    """Return the fraction of the critical path that is spent adding gradients.

    Raises:
        NotYetError: the run is missing.
    """
    if "fifth" not in runs:
        raise NotYetError('run the cell that begins with pw.runs["fifth"] first: the answer is in it.')
    path = runs["fifth"].critical_path()
    # An event of -1 is a gap in front of a node, which would not go away with the additions.
    return sum(one.end - one.start for one in path.segments if one.name == _ADDS and one.event >= 0) / path.length


def _why_at_most(answer: Any, expected: float) -> str:
    part = 1 - 1 / expected
    if is_near(answer, part) or is_near(answer, 100 * part):
        return "That is the part of the path that would go. How many times as long as what remains was the whole?"
    if is_near(answer, 1 + part):
        return "Nearly: the time saved is a part of the whole, but the speed-up compares the whole with what remains."
    if is_near(answer, 1 / expected):
        return "The other way round: that is how long it would take, as a part of what it took."
    if is_near(answer, 1 / (1 - part / 2)):
        return "That is for additions twice as fast; here they take no time at all."
    if is_near(answer, 1 / part):
        return "That compares the whole with the additions, and those are what goes."
    return f"Take the row {_ADDS} of the table away from the critical path: what remains, and how long was the whole?"


# If that fraction of the path took no time: Amdahl's law along the critical path.
QUESTIONS = {"10.at_most": Question(lambda: 1 / (1 - _part()), _why_at_most)}
