"""What follows from a compiled step, and its form on disk, so that a second look needs no compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax.extend.core as jex

from pathways_nb.adopt.collective_line import CollectiveLine
from pathways_nb.adopt.collective_table import Collectives, collectives_of
from pathways_nb.adopt.module_graph import graph_of, numbered
from pathways_nb.adopt.scheduled_depths import ScheduledDepths
from pathways_nb.adopt.taken_step import TakenStep
from pathways_nb.adopt.whole_copies import copies_in
from pathways_nb.compilers import disk_cache
from pathways_nb.cost.hardware.topology import Topology
from pathways_nb.cost.hlo.hlo_schedule import UNKNOWN_TRIPS
from pathways_nb.cost.hlo.hlo_text import parse
from pathways_nb.cost.launch.bands import SecondsBand, band_of, calibrated_band
from pathways_nb.cost.launch.constants import LaunchConstants, in_table
from pathways_nb.cost.launch.launch_forms import LAUNCH
from pathways_nb.cost.launch.launch_timing import LaunchSeconds, launch_seconds
from pathways_nb.cost.launch.op_seconds import LaunchPlace, price_of
from pathways_nb.cost.launch.opened_launch import OpenedLaunch
from pathways_nb.errors import UsageError
from pathways_nb.jaxpr import jaxpr_digest
from pathways_nb.plan.source_texts import digest_of_files
from pathways_nb.program.compiled_blocks import CompiledBlocks
from pathways_nb.program.items import equations, origins_in
from pathways_nb.runtime.sim import kept_estimates
from pathways_nb.trace.op_forms import OP_GRAPH
from pathways_nb.trace.op_graph import OpGraph
from pathways_nb.util.json_forms import Form, list_of, record, row
from pathways_nb.util.json_text import Field


@dataclass(frozen=True, eq=False)
class PredictedStep:
    """What follows from a compiled step.

    Args:
        launch: it from inside.
        band: its seconds.
        collectives: by line.
        graph: of its operations; empty in files of before it was kept.
    """

    launch: OpenedLaunch
    band: SecondsBand
    collectives: Collectives
    graph: OpGraph = field(default_factory=OpGraph)


def predicted(
    compiled: CompiledBlocks,
    place: LaunchPlace,
    known: LaunchConstants,
    mesh: Mapping[str, int],
    notes: tuple[str, ...],
    trips: int | None,
    name: str,
) -> PredictedStep:
    """Return what follows from a compiled step.

    Args:
        compiled: the step.
        place: its devices.
        known: constants of their chip.
        mesh: devices along each axis.
        notes: on what was left out.
        trips: of loops that end by their data.
        name: of the step's function.

    Raises:
        UsageError: it has such a loop, and nobody says how often it runs.
    """
    launch = compiled.opened(place, known, trips)
    launch = replace(launch, notes=(*launch.notes, *notes))
    if unknown := next((note for note in launch.notes if UNKNOWN_TRIPS in note), ""):
        said = unknown.partition(" and is")[0]
        raise UsageError(f"adopt: {said}, as its data decides. Say how often: pw.adopt(…, trips=100).")
    modules = [parse(text.text) for text in compiled.texts if text.text]
    if len(modules) < len(compiled.texts):  # refused before anything was scheduled
        return PredictedStep(launch, SecondsBand(0.0, 0.0, 0.0), Collectives(()))
    programs = ScheduledDepths.of(
        modules, len(place.places), price_of(place, known), compiled.depths, compiled.blocks, trips
    )

    def seconds_with(values: LaunchConstants) -> LaunchSeconds:
        """Return the seconds of all blocks with some constants."""
        each = [launch_seconds(schedule, price_of(place, values)) for schedule in programs.schedules]
        exposed, ordered, hidden = (
            programs.at_all_blocks([getattr(one, name) for one in each]) for name in ("exposed", "ordered", "hidden")
        )
        return LaunchSeconds(exposed, ordered, hidden, each[-1].busy)

    # A chip that no compiler knows by its name is one that was measured here.
    if place.chip.compiler is None:
        band = calibrated_band(seconds_with(known))
    else:
        band = band_of(seconds_with, known, in_table(place.chip).name)
    copies = [copies_in(module, text.warned) for module, text in zip(modules, compiled.texts, strict=True)]
    found = collectives_of(programs, place, mesh, copies)
    unmatched = dict.fromkeys(copy.note for copy in copies[-1] if not copy.gathers)
    lines = [row.line for row in found.rows]
    graph, node_of = graph_of(programs, name, lines)
    launch = replace(launch, ops=numbered(launch.ops, graph, node_of), notes=(*launch.notes, *unmatched))
    return PredictedStep(launch, band, found, graph)


_LINE: Form[CollectiveLine] = record(
    CollectiveLine,
    line=Field.text,
    function=Field.text,
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
    graph=OP_GRAPH,
)


def digest_of(
    taken: TakenStep, topology: Topology, options: Mapping[str, Any], known: LaunchConstants, compiler: Any
) -> str:
    """Return the name under which a prediction is kept; empty where the step cannot be named.

    Args:
        taken: the step.
        topology: its devices.
        options: of the compiler.
        known: constants of the chip.
        compiler: name and version, and what else decides.
    """
    layouts = [str(one.sharding.spec) for one in taken.structs], list(map(str, taken.results))
    jaxpr = taken.jaxpr
    key = (
        "adopt", taken.name, jaxpr_digest.digest_of(jaxpr), origins_in([jaxpr]), _sources_of(jaxpr), layouts,
        taken.donated, taken.mesh, topology, sorted(options.items()), known, compiler, taken.notes,
    )  # fmt: skip
    return kept_estimates.digest_of(key)


def _sources_of(jaxpr: jex.ClosedJaxpr) -> str:
    """Return a digest of the user's files that equations come from: a prediction keeps the texts of their lines."""
    tracebacks = {said for eqn in equations(jaxpr) if (said := eqn.source_info.traceback) is not None}
    return digest_of_files({frame.file_name for said in tracebacks for frame in said.frames})


def read(digest: str) -> PredictedStep | None:
    """Return the prediction that was kept under a name; None if there is none, or it is damaged."""
    return kept_estimates.read_as(STEP, digest)


def write(digest: str, made: PredictedStep) -> None:
    """Keep a prediction under a name; nothing is kept under an empty one."""
    if digest:
        disk_cache.write(digest, STEP.write(made))
