"""Predict the step of a row: compile it for its chip, price the schedule, say how far it may be off.

Seconds are sums over the tasks of compiled schedules. PyTorch's steps are compiled at two depths, of which the
difference is one block; JAX's as one scan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from pathways_nb.compilers import compiling, lowered, targets
from pathways_nb.compilers.lowered import LoweredText
from pathways_nb.compilers.presets import preset
from pathways_nb.compilers.targets import CompilerTarget
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hardware.chips import chip as chip_of
from pathways_nb.cost.hardware.topology import make_topology
from pathways_nb.cost.hlo.buffers import buffers_in
from pathways_nb.cost.hlo.hlo_schedule import LaunchSchedule, schedule_of
from pathways_nb.cost.hlo.hlo_text import digest_of, parse
from pathways_nb.cost.launch.bands import band_of
from pathways_nb.cost.launch.block_extrapolation import extended
from pathways_nb.cost.launch.constants import LaunchConstants, constants
from pathways_nb.cost.launch.launch_timing import LaunchSeconds, launch_seconds
from pathways_nb.cost.launch.op_seconds import LaunchPlace, price_of
from pathways_nb.errors import PathwaysError, UsageError
from pathways_nb.published.row_model import step_program
from pathways_nb.published.step_rows import PublishedStep, UnreadRow

_AT_ONCE = 2
"""Rows that are compiled at the same time."""
_DEPTHS = (2, 4)
"""Blocks of the two programs that are compiled where blocks are written one by one."""


@dataclass(frozen=True)
class CompiledRow:
    """A compiled step of a row.

    Args:
        layers: blocks that it has.
        schedule: of its operations.
        place: the devices.
        digest: of the compiled text.
        compiler: name and version.
        refused: the compiler's words if the step does not fit.
        bytes: memory of one device.
    """

    layers: int
    schedule: LaunchSchedule
    place: LaunchPlace
    digest: str
    compiler: str
    refused: str
    bytes: float


@dataclass(frozen=True)
class StepPrediction:
    """What a row's step takes.

    Args:
        seconds: of a step.
        low: of both bands together.
        high: of both bands together.
        hidden: with all communication hidden.
        exposed: with none hidden.
        bytes: memory of one device at its peak.
        basis: compiler, digests of the compiled texts, constants.
    """

    seconds: float
    low: float
    high: float
    hidden: float
    exposed: float
    bytes: float
    basis: str


def compiled_steps(row: PublishedStep) -> list[CompiledRow]:
    """Return the compiled programs of a row: one, or two of different depths.

    Raises:
        UsageError: an unknown chip, or one whose compiler is not installed or refuses the step.
    """
    chip = chip_of(row.chip)
    short = row.stack != "jax" and row.model.layers > max(_DEPTHS)
    return [_compiled(row, chip, layers) for layers in (_DEPTHS if short else (row.model.layers,))]


def _compiled(row: PublishedStep, chip: Chip, layers: int) -> CompiledRow:
    """Return one compiled program."""
    slices = slices_of(row, chip)
    devices = row.devices // slices * chip.devices_per_chip
    target = targets.target(make_topology(chip, devices), slices)
    program = step_program(row, layers, target.platform)
    text = lowered.lower(program.function, program.arguments, program.donated, target.platform)
    made = _with_known_options(text, target, options_of(row))
    place = LaunchPlace(chip, made.places, min(chip.devices_per_host, devices))
    schedule = schedule_of(parse(made.text), len(made.places)) if made.text else LaunchSchedule(())
    return CompiledRow(
        layers, schedule, place, digest_of(made.text), made.compiler, made.refused, buffers_in(made.buffers).total
    )


def slices_of(row: PublishedStep, chip: Chip) -> int:
    """Return the slices of a row's TPUs, which their hosts' network joins: a replica is one, or several pods."""
    if chip.interconnect != "torus":
        return 1
    each = row.devices // row.dp
    pods = -(-each // math.prod(chip.pod))
    return row.dp * pods if each % pods == 0 else row.dp


def _with_known_options(text: LoweredText, target: CompilerTarget, options: dict[str, Any]) -> compiling.CompiledText:
    """Return a compiled program, without those published options that this version of the compiler does not take."""
    while True:
        try:
            return compiling.compile_for(text, target, options, say=lambda line: None)
        except compiling.CompilerError as error:
            if error.unknown_option in options:
                options = {name: value for name, value in options.items() if name != error.unknown_option}
            elif "FAILED_PRECONDITION" in str(error) and options:
                options = {}  # libtpu 0.0.50 forbids some of them together, and does not name them
            else:
                raise


def options_of(row: PublishedStep) -> dict[str, Any]:
    """Return the compiler options that a row's stack stands for.

    JAX's recipes set flags, by kind of chip. PyTorch reduces the gradients of each block by themselves, so XLA must not
    wait for all blocks to reduce them at once.
    """
    if row.stack == "torch":
        size = row.model.block_weights // row.tp * (4 if row.fp32_gradients else 2)
        return {"xla_gpu_reduce_scatter_combine_threshold_bytes": size}
    if row.chip.startswith("gpu"):
        return preset("nvidia-maxtext")
    flags = {"tpu_v4": "maxtext-v4", "tpu_v5p": "maxtext-v5p", "tpu_v6e": "maxtext-v6e"}
    return preset(flags[row.chip]) if row.chip in flags else {}


def priced(row: PublishedStep, steps: Sequence[CompiledRow], known: LaunchConstants) -> LaunchSeconds:
    """Return the seconds of a row's step, of all its blocks."""
    each = [launch_seconds(step.schedule, price_of(step.place, known)) for step in steps]
    busy = {name: _extended(row, steps, [one.busy[name] for one in each]) for name in each[0].busy}
    exposed, ordered, hidden = (
        _extended(row, steps, [getattr(one, name) for one in each]) for name in ("exposed", "ordered", "hidden")
    )
    return _with_rules(row, LaunchSeconds(exposed, ordered, hidden, busy), known)


def _extended(row: PublishedStep, steps: Sequence[CompiledRow], values: Sequence[float]) -> float:
    """Return a value at all of a row's blocks, from its values at the blocks that were compiled."""
    return extended(values, [step.layers for step in steps], row.model.layers)


def constants_of(row: PublishedStep) -> LaunchConstants:
    """Return the constants of a row's chip and stack.

    Where parameters are divided inside hosts only, hosts are joined by a network that was not made for more, or their
    stack reduces gradients in many small pieces.
    """
    known = constants(row.chip, row.stack)
    inside = row.fsdp * row.tp <= chip_of(row.chip).devices_per_host
    return known.changed(node_bw=known.replica_bw) if row.dp > 1 and inside else known


def _with_rules(row: PublishedStep, found: LaunchSeconds, known: LaunchConstants) -> LaunchSeconds:
    """Return the seconds with what a row's stack does otherwise than XLA.

    ZeRO-1 by broadcasts (InternEvo): each rank sends out the parameters that it updated, tensor by tensor.
    """
    if row.stack != "torch" or not row.optimizer_shards:
        return found
    tensors = row.model.layers * (9 if row.model.gated else 8) + (2 if row.model.tied else 3)
    more = tensors * row.optimizer_shards * known.shard_latency
    busy = {**found.busy, "network": found.busy["network"] + more}
    return LaunchSeconds(found.exposed + more, found.ordered + more, max(found.hidden, busy["network"]), busy)


def memory_of(row: PublishedStep, steps: Sequence[CompiledRow]) -> float:
    """Return the bytes of one device, of all blocks of a row.

    FSDP2 adds up the gradients of microbatches where they were computed, whole and in float32, and reduces their sum.
    """
    found = _extended(row, steps, [step.bytes for step in steps])
    if row.fsdp2 and row.accumulate > 1:
        weights = row.model.weights / row.tp
        found += 4 * weights - (2 if row.bf16_weights else 4) * weights / row.fsdp
    return found


def predict(
    row: PublishedStep, known: LaunchConstants | None = None, steps: Sequence[CompiledRow] | None = None
) -> StepPrediction:
    """Return the seconds and the memory of a row's step.

    The compiler's order decides what is hidden inside a slice or between GPUs; transfers between slices count as
    exposed. The band is that of ``cost.launch.bands``.

    Args:
        row: the setting.
        known: None for the table's constants.
        steps: the compiled programs, if they are at hand.

    Raises:
        UsageError: the row cannot be predicted; the text says why.
    """
    steps = compiled_steps(row) if steps is None else steps
    known = constants_of(row) if known is None else known
    if refused := next((step.refused for step in steps if step.refused), ""):
        raise UsageError(f"{row.id}: the compiler refuses it: {refused}")
    found = priced(row, steps, known)
    band = band_of(lambda values: priced(row, steps, values), known, row.chip, row.stack)
    names = ", ".join(f"{step.layers} blocks {step.digest}" for step in steps)
    assumed = row.assumed and f"; {row.assumed}"
    return StepPrediction(
        *band, found.hidden, found.exposed, memory_of(row, steps),
        f"{steps[0].compiler}; compiled text of {names}; {known.rates}; in the compiler's order{assumed}",
    )  # fmt: skip


def predictions(rows: Sequence[PublishedStep | UnreadRow], say: Callable[[str], object]) -> list[StepPrediction | str]:
    """Return a prediction of each row, or the reason why there is none; several are compiled at once.

    Args:
        rows: the settings.
        say: is called with a line for each row that is done.
    """
    found: list[StepPrediction | str] = [one.reason if isinstance(one, UnreadRow) else "" for one in rows]
    done = sum(isinstance(one, UnreadRow) for one in rows)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        waiting = {
            pool.submit(predict, row): number for number, row in enumerate(rows) if isinstance(row, PublishedStep)
        }
        try:
            for future in as_completed(waiting):
                number = waiting[future]
                try:
                    found[number] = future.result()
                except PathwaysError as error:
                    found[number] = str(error)
                except Exception as error:  # of one row, not of the others
                    found[number] = f"{rows[number].id}: {type(error).__name__}: {error}"
                done += 1
                say(f"{done} of {len(rows)}: {rows[number].id}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            compiling.end_all()
            raise
    return found


def as_json(row: PublishedStep | UnreadRow, found: StepPrediction | str) -> dict[str, Any]:
    """Return a prediction as ``predict-steps --json`` prints it: seconds and bytes, or a reason."""
    if isinstance(found, str):
        nothing = dict.fromkeys(("seconds", "low", "high", "peak_bytes", "basis"))
        return {"id": row.id, **nothing, "reason": found}
    return {
        "id": row.id, "seconds": found.seconds, "low": found.low, "high": found.high, "peak_bytes": found.bytes,
        "basis": found.basis,
    }  # fmt: skip


def as_line(row: PublishedStep | UnreadRow, found: StepPrediction | str) -> str:
    """Return a prediction as a line of text."""
    if isinstance(found, str):
        return f"{row.id}: not predicted: {found}"
    measured = "" if isinstance(row, UnreadRow) or row.seconds is None else f", measured {row.seconds:.3f} s"
    band = f"{found.low:.3f} to {found.high:.3f}"
    return f"{row.id}: {found.seconds:.3f} s ({band}), {found.bytes / 2**30:.1f} GiB{measured}"
