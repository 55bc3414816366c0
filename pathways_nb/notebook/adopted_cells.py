"""What a cell shows of the jitted functions that it called, as steps on a chip."""

from __future__ import annotations

import html

from IPython.display import display

from pathways_nb.adopt.adopted_step import AdoptedStep
from pathways_nb.adopt.attached_step import AttachedStep
from pathways_nb.adopt.called_steps import CalledSteps
from pathways_nb.adopt.step_answers import StepAnswers
from pathways_nb.comparisons.run_comparison import compare
from pathways_nb.errors import OutOfMemoryError, PathwaysError
from pathways_nb.results.run import Run
from pathways_nb.util.words import counted


def show_steps(steps: CalledSteps, run: Run) -> None:
    """Display each step of a cell, and why other functions are none.

    Args:
        steps: what the cell called.
        run: of the cell; with ops, if it was profiled.
    """
    seen = set[str]()
    for step, calls in zip(steps, steps.calls, strict=True):
        try:
            _show(step, f"called {counted(calls, 'time')}" + ", with other arguments" * (step.name in seen), run)
            seen.add(step.name)
        except PathwaysError as error:
            steps.refused[step.name] = f"has no prediction: {error}"
    for name, why in steps.refused.items():
        say(f"{name} {why}")
    if not steps and not steps.refused:
        say("No jitted function of yours was called in this cell.")


def _show(step: StepAnswers, called: str, run: Run) -> None:
    """Display a step: a line, its collectives, its operations and memory, those that ran beside those predicted.

    Args:
        step: the step.
        called: how it was called in the cell, in words.
        run: of the cell.
    """
    say(f"{step.summary}; {called}")
    for note in step.notes:
        say(f"note: {note}")
    display(step.collectives())
    if isinstance(step, AdoptedStep) and step.has_tries:
        display(step.try_buttons())
    if not step.memory().fits:
        try:
            _ = step.seconds
        except OutOfMemoryError as error:
            say(str(error))
    if isinstance(step, AttachedStep) and len(run.ops):
        both = compare(step, run)
        say(both.summary_line())
        both.show("ops")
    else:
        step.show()


def say(text: str) -> None:
    """Display a line of text below the cell."""
    display({"text/html": f"<div>{html.escape(text)}</div>", "text/plain": text}, raw=True)
