"""``pw.record``: a recording of a block, in which jitted functions are adopted if that is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

from pathways_nb.adopt.called_steps import CalledSteps, called
from pathways_nb.adopt.devices_here import attach_listed
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.errors import UsageError
from pathways_nb.results.run import Run
from pathways_nb.session.calls import client
from pathways_nb.util.option_names import checked_options


@checked_options()
@contextlib.contextmanager
def record(
    name: str = "run",
    show: str | Sequence[str] = (),
    source: str = "",
    adopt: str | PathLike[str] | Chip | None = None,
    mesh: Mapping[str, int] | None = None,
    options: Mapping[str, Any] | str | None = None,
) -> Iterator[Run]:
    """Record what runs inside the block: calls of computations become one program, programs go out as they are called.

    The end of the block waits for what was submitted in it. An interrupt cancels what this thread has queued since its
    cell began, or outside IPython since its outermost block began, and says how many calls those were.

    Args:
        name: of the run.
        show: any of ``"graph"``, ``"timeline"``, ``"critical"`` (the timeline with its critical path), ``"ops"`` (the
            timeline with the ops inside launches) and ``"memory"``, or several as in ``"timeline,memory"``: displayed
            live below the cell.
        source: the code of the block, kept with the run.
        adopt: a chip, as in ``pw.adopt``: each outermost call of a jitted function of the user's is adopted for it, in
            ``run.adopted``, and runs as it would without. ``"here"`` is for the devices that its arguments are on: then
            calls are nodes of the controller, and return when they have ended.
        mesh: with ``adopt``, as in ``pw.adopt``.
        options: with ``adopt``, as in ``pw.adopt``.

    Yields:
        The run.

    Raises:
        UsageError: ``mesh`` or ``options`` without ``adopt``, or this version of JAX cannot be watched.
    """
    if adopt is None:
        if mesh is not None or options is not None:
            raise UsageError('record(mesh=…, options=…) are for adopt=: pw.record(adopt="gpu_h100_sxm", mesh=…).')
        with client.record(name, show, source) as run:
            yield run
        return
    attach_listed()
    with client.record(name, show, source) as run, called(run, CalledSteps(adopt, mesh, options)):
        yield run
