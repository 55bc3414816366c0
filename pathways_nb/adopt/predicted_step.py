"""What follows from a compiled step, and its form on disk, so that a second look needs no compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pathways_nb.adopt.collectives import CollectiveLine, Collectives
from pathways_nb.adopt.taken_step import TakenStep
from pathways_nb.compilers import disk_cache
from pathways_nb.cost.hardware.topology import Topology
from pathways_nb.cost.launch.bands import SecondsBand
from pathways_nb.cost.launch.constants import LaunchConstants
from pathways_nb.cost.launch.launch_forms import LAUNCH
from pathways_nb.cost.launch.opened_launch import OpenedLaunch
from pathways_nb.program.items import lines_in
from pathways_nb.runtime.sim import kept_estimates
from pathways_nb.util.json_forms import Form, list_of, record, row
from pathways_nb.util.json_text import DamagedError, Field


@dataclass(frozen=True, eq=False)
class PredictedStep:
    """What follows from a compiled step.

    Args:
        launch: it from inside.
        band: its seconds.
        collectives: by line.
        notes: on what was left out.
    """

    launch: OpenedLaunch
    band: SecondsBand
    collectives: Collectives
    notes: tuple[str, ...] = ()


_LINE: Form[CollectiveLine] = record(
    CollectiveLine,
    line=Field.text,
    scope=Field.text,
    kind=Field.text,
    axes=Form(Field.texts, list),
    devices=Field.whole,
    hosts=Field.whole,
    bytes=Field.number,
    count=Field.number,
    seconds=Field.number,
    exposed=Field.number,
    flag=Field.text,
)
STEP: Form[PredictedStep] = record(
    PredictedStep,
    launch=LAUNCH,
    band=row(SecondsBand._make, *(Field.number,) * 3),
    collectives=record(Collectives, rows=list_of(_LINE)),
    notes=Form(Field.texts, list),
)


def digest_of(
    taken: TakenStep, topology: Topology, options: Mapping[str, Any], known: LaunchConstants, compiler: str
) -> str:
    """Return the name under which a prediction is kept; empty where the step cannot be named.

    Args:
        taken: the step.
        topology: its devices.
        options: of the compiler.
        known: constants of the chip.
        compiler: name and version.
    """
    layouts = [str(one.sharding.spec) for one in taken.structs], list(map(str, taken.results))
    key = (
        "adopt", taken.name, str(taken.jaxpr), lines_in([taken.jaxpr]), layouts, taken.donated, taken.mesh, topology,
        sorted(options.items()), known, compiler, taken.notes,
    )  # fmt: skip
    return kept_estimates.digest_of(key)


def read(digest: str) -> PredictedStep | None:
    """Return the prediction that was kept under a name; None if there is none, or it is damaged."""
    found = disk_cache.read(digest) if digest else None
    try:
        return None if found is None else STEP.read(Field(found))
    except DamagedError:
        return None


def write(digest: str, made: PredictedStep) -> None:
    """Keep a prediction under a name; nothing is kept under an empty one."""
    if digest:
        disk_cache.write(digest, STEP.write(made))
