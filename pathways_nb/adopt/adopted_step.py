"""``pw.adopt``: a jitted step of any framework, unchanged, on chips that are not here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from os import PathLike
from typing import Any

import jax

from pathways_nb.adopt import recorded_step
from pathways_nb.adopt.attached_step import AttachedStep, options_of
from pathways_nb.adopt.devices_here import mesh_here
from pathways_nb.adopt.predicted_step import PredictedStep, digest_of, predicted, read, write
from pathways_nb.adopt.recorded_step import RecordedStep
from pathways_nb.adopt.step_answers import StepAnswers
from pathways_nb.adopt.step_node import StepNode
from pathways_nb.adopt.taken_step import TakenStep, take
from pathways_nb.adopt.traced_call import no_mesh
from pathways_nb.compilers import packages, targets
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hardware.chips import chip as chip_of
from pathways_nb.cost.hardware.topology import Topology, make_topology
from pathways_nb.cost.launch.constants import constants_for
from pathways_nb.errors import PlaceError, UsageError
from pathways_nb.plan import source_lines
from pathways_nb.program.compiled_blocks import CompiledBlocks, compile_blocks, named
from pathways_nb.program.signature import Deferred
from pathways_nb.util.progress import to_standard_error


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
        chip: a name, ``"gpu_h100_sxm"``, with a topology behind a colon, ``"tpu_v5p:4x4x8"``; a ``pw.chip``, or the
            path of a file. None for the devices that the arguments are on.
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
        leaves = jax.tree.leaves((args, kwargs), is_leaf=lambda leaf: isinstance(leaf, Deferred))
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
        self.options = options_of(options)
        """Options of the compiler."""
        self._taken = taken(sizes)
        mesh = dict(self._taken.mesh.shape_tuple)
        self.topology = _topology(chip, math.prod(mesh.values()))
        """The devices."""
        super().__init__(self._taken.name, self.topology.chip.name, mesh)
        self._target = targets.target(self.topology)
        self._recorded = None if packages.is_installed(self._target.kind) else self._record()

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
        digest = digest_of(self._taken, self.topology, self.options, known, (said, self._trips))
        if not recorded_step.is_recording() and (found := read(digest)) is not None:
            return found
        if recorded is not None:
            compiled, notes = recorded.compiled, (*notes, recorded.note)
        else:
            compiled = self._compiled()
        per_host = self.topology.devices_per_host
        hosts = [number // per_host for number in range(self.topology.devices)]
        place = compiled.place(self.chip, hosts, per_host)
        made = predicted(compiled, place, known, self.mesh, notes, self._trips, self._taken.name)
        write(digest, made)
        return made

    def _compiled(self) -> CompiledBlocks:
        """Return what the compiler of the chip makes of the step."""
        taken = self._taken
        with no_mesh():
            compiled = compile_blocks(
                named(taken.function, taken.name), taken.structs, taken.donated, self._target, self.options,
                to_standard_error, lambda: True,
            )  # fmt: skip
        recorded_step.keep(taken, self._target, self.options, compiled, self.chip.name)
        return compiled


def _topology(asked: str | PathLike[str] | Chip, devices: int) -> Topology:
    """Return the devices that are asked for.

    Args:
        asked: a chip, or its name with a topology behind a colon.
        devices: that the mesh has.

    Raises:
        PlaceError: the topology has another number of devices.
        UsageError: there is no such chip.
    """
    if not isinstance(asked, str) or ":" not in asked:
        return make_topology(chip_of(asked), devices)
    name, _, said = asked.partition(":")
    chip = chip_of(name)
    try:
        shape = tuple(int(part) for part in said.split("x"))
    except ValueError:
        raise PlaceError(f"adopt(chip={asked!r}): write the topology as {name}:4x4x8.") from None
    has = math.prod(shape) * chip.devices_per_chip
    if has != devices:
        raise PlaceError(
            f"adopt(chip={asked!r}): this topology has {has} devices, and the mesh {devices}. Change one of them."
        )
    return make_topology(chip, devices, topology=shape)
