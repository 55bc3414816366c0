"""``pw.adopt``: a jitted step of any framework, unchanged, on chips that are not here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import islice
from os import PathLike
from typing import Any, overload

import jax
from jax.sharding import PartitionSpec

from pathways_nb.adopt import constraints, recorded_step
from pathways_nb.adopt.asked_devices import asked_devices, nearest_tori
from pathways_nb.adopt.attached_step import AttachedStep, options_of
from pathways_nb.adopt.call_arguments import is_future
from pathways_nb.adopt.collective_line import CollectiveLine
from pathways_nb.adopt.constraints import Constraint, Constraints, constraints_of
from pathways_nb.adopt.devices_here import mesh_here
from pathways_nb.adopt.predicted_step import PredictedStep, digest_of, predicted, read, write
from pathways_nb.adopt.recorded_step import RecordedStep
from pathways_nb.adopt.step_answers import StepAnswers
from pathways_nb.adopt.step_node import StepNode
from pathways_nb.adopt.taken_step import TakenStep, take
from pathways_nb.adopt.traced_call import no_mesh
from pathways_nb.adopt.tried_lines import TriedLine, TriedLines
from pathways_nb.adopt.try_buttons import try_buttons
from pathways_nb.compilers import packages, targets
from pathways_nb.compilers.compiling import CompilerError
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.launch.constants import constants_for
from pathways_nb.errors import PathwaysError, UsageError
from pathways_nb.plan import source_lines
from pathways_nb.program.compiled_blocks import CompiledBlocks, compile_blocks, named
from pathways_nb.util.progress import Progress, show_progress


@overload
def adopt(
    step: Any,
    *args: Any,
    mesh: Mapping[str, int] | None = None,
    chip: None = None,
    options: Mapping[str, Any] | str | None = None,
    trips: int | None = None,
    **kwargs: Any,
) -> AttachedStep: ...
@overload
def adopt(
    step: Any,
    *args: Any,
    mesh: Mapping[str, int] | None = None,
    chip: str | PathLike[str] | Chip,
    options: Mapping[str, Any] | str | None = None,
    trips: int | None = None,
    **kwargs: Any,
) -> AdoptedStep: ...
@source_lines.users_view
def adopt(
    step: Any,
    *args: Any,
    mesh: Mapping[str, int] | None = None,
    chip: str | PathLike[str] | Chip | None = None,
    options: Mapping[str, Any] | str | None = None,
    trips: int | None = None,
    **kwargs: Any,
) -> AdoptedStep | AttachedStep:
    """Return a jitted step as it runs on other chips, or on the devices here; nothing in it is rewritten.

    A call of what is returned runs the step on the devices that its arguments are on, as a node of the controller.

    Args:
        step: a jitted training or inference step of any framework: ``jax.jit``, ``nnx.jit``, ``eqx.filter_jit``; or a
            function that takes a mesh and returns one, where it closes over a mesh.
        *args: the arguments of a call: arrays, shapes (``jax.ShapeDtypeStruct`` with a ``sharding``), trees of both.
        mesh: devices along each axis of the mesh, such as ``{"data": 16, "model": 8}``; None for the sizes of the mesh
            that the arguments are on. Axes keep their names and types.
        chip: a name, ``"gpu_h100_sxm"``, with a topology behind a colon, ``"tpu_v5p:4x4x8"``, and a number of slices
            behind that, ``"tpu_v5p:4x4x8*2"``; a ``pw.chip``, or the path of a file. More TPUs than a pod has are as
            few slices as hold them. None for the devices that the arguments are on.
        options: of the compiler, by name; or the name of a preset (``pathways_nb.compilers.presets``).
        trips: how often loops run that end by their data, such as ``jax.lax.while_loop``.
        **kwargs: further arguments of the call.

    Raises:
        ShardingError: no argument is divided, or arguments are on meshes with different axes.
        PlaceError: the topology, or this machine, does not have as many devices as the mesh needs.
        UsageError: the step is not jitted or cannot be taken over, or no compiler knows the chip.
    """

    def taken(sizes: Mapping[str, int] | None) -> TakenStep:
        return take(step, args, kwargs, sizes)

    if chip is None:
        leaves = jax.tree.leaves((args, kwargs), is_leaf=is_future)
        return AttachedStep(step, taken, mesh_here(leaves, mesh), options_of(options), trips)
    return AdoptedStep(step, taken, mesh, chip, options, trips)


class AdoptedStep(StepAnswers):
    """A step on chips that are not here: made by ``pw.adopt``."""

    def __init__(
        self,
        step: Any,
        taken: Callable[[Mapping[str, int] | None], TakenStep],
        sizes: Mapping[str, int] | None,
        chip: str | PathLike[str] | Chip,
        options: Mapping[str, Any] | str | None,
        trips: int | None = None,
    ):
        self._take, self._sizes, self._asked, self._trips = taken, sizes, chip, trips
        self._given, self._step = options, step
        self._taken = taken(sizes)
        mesh = dict(self._taken.mesh.shape_tuple)
        self.topology, self.slices = asked_devices(chip, math.prod(mesh.values()))
        """The devices: of one slice, and the number of slices (1 but for TPUs that their hosts' network joins)."""
        super().__init__(self._taken.name, self.topology.chip.name, mesh, options_of(options))
        self._target = targets.target(self.topology, self.slices)
        # libtpu takes options of GPUs without a word.
        if self._target.kind == "tpu" and (wrong := [name for name in self.options if name.startswith("xla_gpu_")]):
            raise self._no_option(wrong[0])
        self._recorded = None if packages.is_installed(self._target.kind) else self._record()
        known = self._recorded.compiler if self._recorded else packages.version_of(self._target.kind)
        self.versions = {"jax": jax.__version__, "compiler": known}

    def _record(self) -> RecordedStep:
        """Return the text that was recorded of this step.

        Raises:
            UsageError: there is none, and the compiler is not installed.
        """
        found = recorded_step.find(self._taken, self._target, self.options)
        if found is None:
            others = recorded_step.recorded_of(self.name)
            said = f"; recorded are {', '.join(others)}, with other options, arguments or code" * bool(others)
            raise UsageError(
                f"adopt({self.name}): the {self._target.kind.upper()} compiler, which {self.chip.name} needs, is not "
                f"installed, and no recorded text matches this step on {self.where}{said}. "
                f"{packages.how_to_install(self._target.kind)}"
            )
        return found

    @property
    def chip(self) -> Chip:
        """The chip."""
        return self.topology.chip

    def _taught(self, error: CompilerError) -> UsageError:
        """Return an error that says what to write in place of an option or a topology that a compiler does not take."""
        if (name := error.unknown_option) is not None:
            return self._no_option(name)
        if "slice_builder" not in str(error):  # where libtpu makes routes from chip to chip
            return error
        near = [f"{self.chip.name}:{'x'.join(map(str, one))}" for one in islice(nearest_tori(self.topology), 3)]
        shape = " × ".join(map(str, self.topology.shape))
        return UsageError(
            f"adopt(chip=…): {packages.version_of(self._target.kind)} has no routes for a torus of {shape} chips of "
            f"{self.chip.name}; the nearest that it has: {', '.join(near)}. Its own words: {error}"
        )

    def _no_option(self, name: str) -> UsageError:
        of = {"gpu": "xla_gpu_", "tpu": "xla_tpu_"}
        other = next((kind for kind, start in of.items() if name.startswith(start) and kind != self._target.kind), None)
        fix = f"It is one of {other.upper()}s: leave it out" if other else "Correct its name, or leave it out"
        return UsageError(
            f"adopt(options=…): the compiler of {self.chip.name}, {packages.version_of(self._target.kind)}, has no "
            f"option {name!r}. {fix}."
        )

    def on(
        self,
        chip: str | PathLike[str] | Chip | None = None,
        mesh: Mapping[str, int] | None = None,
        options: Mapping[str, Any] | str | None = None,
    ) -> AdoptedStep:
        """Return the same step elsewhere; what is left out stays as it is.

        Args:
            chip: as in ``pw.adopt``. Another chip takes no compiler options along, as they are one compiler's own.
            mesh: as in ``pw.adopt``.
            options: as in ``pw.adopt``.
        """
        kept = self._given if chip is None else None
        return AdoptedStep(
            self._step, self._take, self._sizes if mesh is None else mesh, self._asked if chip is None else chip,
            kept if options is None else options, self._trips,
        )  # fmt: skip

    def constraints(self) -> Constraints:
        """Return the step's constraints, ``jax.lax.with_sharding_constraint``: a row for each line and spec."""
        return constraints_of(self._taken)

    @source_lines.users_view
    def try_line(self, line: str | CollectiveLine, spec: PartitionSpec | None = None) -> TriedLine[AdoptedStep]:
        """Return what the step would be without the constraint on a line, or with another spec for it.

        Args:
            line: ``"train.py:12"`` or a row of ``collectives()``; that of the constraint, or one that calls it.
            spec: of the value; None leaves the constraint out.

        Raises:
            ShardingError: the spec does not fit the value.
            UsageError: there is no constraint; those that can be tried are named. Or it is no line.
        """
        if not isinstance(line, str | CollectiveLine):
            raise UsageError(f"try_line({line!r}): a line is 'train.py:12', or a row of step.collectives().rows.")
        at = line if isinstance(line, str) else line.line
        return self._tried(at, self.constraints().on(at), spec)

    def try_flagged(self) -> TriedLines[AdoptedStep]:
        """Return what the step would be without each constraint that stands beside a flagged collective.

        That is on its line, on what the line reads, or on what it makes. The best is the first.
        """
        found, failed, rows = list[TriedLine[AdoptedStep]](), list[str](), self._beside_flagged
        with Progress() as progress:
            for number, row in enumerate(rows, 1):
                progress.tell(f"trying {number} of {len(rows)}: without {row.said}")
                try:
                    tried = self._tried(row.where, (row,), None)
                    _ = tried.saved  # compiles it
                    found.append(tried)
                except PathwaysError as error:
                    failed.append(f"without {row.said}: {error}")
        others = () if rows else tuple(dict.fromkeys(row.line for row in self.constraints().rows if row.line))
        return TriedLines(self.name, tuple(sorted(found, key=lambda one: -one.saved)), failed, others)

    def try_buttons(self) -> Any:
        """Return a widget with a button for each constraint that ``try_flagged`` tries; a click tries that one."""
        return try_buttons(self._beside_flagged, lambda row: self._tried(row.where, (row,), None))

    @property
    def has_tries(self) -> bool:
        """Whether a constraint stands beside a flagged collective."""
        return bool(self._beside_flagged)

    @cached_property
    def _beside_flagged(self) -> tuple[Constraint, ...]:
        lines = {row.line for row in self.collectives().rows if row.flag and row.line}
        return constraints.beside(self._taken, lines)

    def _tried(self, line: str, rows: tuple[Constraint, ...], spec: PartitionSpec | None) -> TriedLine[AdoptedStep]:
        def take(sizes: Mapping[str, int] | None) -> TakenStep:
            return constraints.changed(self._taken if sizes == self._sizes else self._take(sizes), rows, spec)

        step = AdoptedStep(None, take, self._sizes, self._asked, self._given, self._trips)
        return TriedLine(line, rows, spec, self, step)

    @cached_property
    def _node(self) -> StepNode:
        return StepNode(self._step)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step on the devices that its arguments are on; see ``AttachedStep``."""
        return self._node(*args, **kwargs)

    @cached_property
    def _predicted(self) -> PredictedStep:
        """What follows from the compiled step; from the disk if an equal one was compiled before."""
        known, recorded, notes = constants_for(self.chip, self.topology.network), self._recorded, self._taken.notes
        said = (recorded.compiler, recorded.check) if recorded else packages.version_of(self._target.kind)
        digest = digest_of(self._taken, self.topology, self.options, known, (said, self._trips, self.slices))
        if not recorded_step.is_recording() and (found := read(digest)) is not None:
            return found
        if recorded is not None:
            compiled, notes = recorded.compiled, (*notes, recorded.note)
        else:
            compiled = self._compiled()
        per_host = self.topology.devices_per_host
        hosts = [number // per_host for number in range(self.devices)]
        place = compiled.place(self.chip, hosts, per_host)
        made = predicted(compiled, place, known, self.mesh, notes, self._trips, self._taken.name)
        write(digest, made)
        return made

    def _compiled(self) -> CompiledBlocks:
        """Return what the compiler of the chip makes of the step."""
        taken = self._taken
        try:
            with no_mesh():
                compiled = compile_blocks(
                    named(taken.function, taken.name), taken.structs, taken.donated, self._target, self.options,
                    show_progress, lambda: True,
                )  # fmt: skip
        except CompilerError as error:
            raise self._taught(error) from error
        recorded_step.keep(taken, self._target, self.options, compiled, self.chip.name)
        return compiled
