"""A step on the devices here: compiled by JAX as a call would be, priced by what is known of them."""

from __future__ import annotations

import random
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from pathways_nb.adopt.devices_here import attached_to
from pathways_nb.adopt.predicted_step import PredictedStep, predicted
from pathways_nb.adopt.step_answers import StepAnswers
from pathways_nb.adopt.step_node import StepNode
from pathways_nb.adopt.taken_step import TakenStep
from pathways_nb.calibration.calibrate import calibrated
from pathways_nb.compilers import presets
from pathways_nb.compilers.compiling import CompiledText
from pathways_nb.compilers.targets import chip_of_kind
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.launch.calibrated_constants import calibrated_constants
from pathways_nb.cost.launch.constants import LaunchConstants, constants_for
from pathways_nb.cost.launch.op_seconds import LaunchPlace
from pathways_nb.errors import UsageError
from pathways_nb.program.compiled_blocks import CompiledBlocks, named
from pathways_nb.results.dump_files import modules_in
from pathways_nb.runtime.device_facts import slice_index


class AttachedStep(StepAnswers):
    """A step on the devices that its arguments are on: made by ``pw.adopt`` without a chip.

    A call of it is a node of the controller, and returns futures.

    Args:
        step: as in ``pw.adopt``.
        taken: returns the step, taken over for sizes of its mesh.
        mesh: its devices.
        options: of the compiler.
        trips: of loops that end by their data.
    """

    def __init__(
        self,
        step: Any,
        taken: Callable[[Mapping[str, int] | None], TakenStep],
        mesh: Mesh,
        options: Mapping[str, Any],
        trips: int | None = None,
    ):
        self._taken, self._devices, self._trips = taken(dict(mesh.shape)), mesh, trips
        self._node = StepNode(step)
        super().__init__(self._taken.name, mesh.devices.flat[0].device_kind, dict(mesh.shape), options)
        self.versions = {"jax": jax.__version__}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step on the devices that its arguments are on, as a node of the controller.

        Objects of Flax NNX that it changes in place are changed, after waiting for it.

        Returns:
            What the step returns, with a future for each array.

        Raises:
            ShardingError: the arguments are on several devices and on no mesh.
            UsageError: the controller has other devices, or the step changes other arguments in place.
        """
        return self._node(*args, **kwargs)

    @cached_property
    def _predicted(self) -> PredictedStep:
        taken, count = self._taken, self._devices.devices.size
        text = _compiled(taken, self._devices, self.options)
        chip, known = _priced(self._devices)
        per_host = min(chip.devices_per_host, count)
        compiled = CompiledBlocks((text,), (1,), 1, ())
        place = LaunchPlace(chip, [_where(device) for device in self._devices.devices.flat], per_host)
        return predicted(compiled, place, known, self.mesh, taken.notes, self._trips, taken.name)


def options_of(asked: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Return options of a compiler, or those of the preset of that name."""
    return presets.preset(asked) if isinstance(asked, str) else dict(asked or {})


def _compiled(taken: TakenStep, mesh: Mesh, options: Mapping[str, Any]) -> CompiledText:
    """Return what the compiler of the devices here writes about a step.

    Raises:
        UsageError: it dumps no schedule.
    """
    structs = [
        jax.ShapeDtypeStruct(
            one.shape, one.dtype, sharding=NamedSharding(mesh, one.sharding.spec), weak_type=one.weak_type
        )
        for one in taken.structs
    ]
    jitted = jax.jit(named(taken.function, taken.name), donate_argnums=taken.donated, keep_unused=True)
    platform = mesh.devices.flat[0].platform
    # What comes from JAX's cache of compilations is not dumped whole. An option of another platform changes nothing but
    # the key there.
    other = "xla_gpu_redzone_padding_bytes" if platform == "cpu" else "xla_cpu_parallel_codegen_split_count"
    for more in ({}, {other: random.randrange(1, 2**31)}):
        asked: dict[str, Any] = {**more, **options}
        with tempfile.TemporaryDirectory(prefix="pathways_nb-") as folder, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                jitted.lower(*structs).compile(compiler_options={"xla_dump_to": folder, **asked})
            dumped = modules_in(Path(folder)) if any(Path(folder).iterdir()) else []
            texts = {"text": dumped[0].text, **dumped[0].texts} if dumped else {}
        if {"text", "memory", "buffers", "live"} <= texts.keys():
            compiler = f"XLA of jaxlib {jax.lib.__version__} for {platform}"
            return CompiledText(**texts, places=(), compiler=compiler)  # type: ignore[arg-type]  # texts alone
    raise UsageError(f"adopt({taken.name}): the compiler of {mesh.devices.flat[0].device_kind} shows no schedule.")


def _priced(mesh: Mesh) -> tuple[Chip, LaunchConstants]:
    """Return the chip of devices and its constants: those of a table, or of a calibration of virtual CPU devices.

    Raises:
        UsageError: there is no table of the chip.
    """
    first = mesh.devices.flat[0]
    if first.platform == "cpu":
        model = calibrated(attached_to(mesh))
        return model.chip, calibrated_constants(model, model.topology(mesh.size))
    chip = chip_of_kind(first.device_kind)
    if chip is None:
        raise UsageError(
            f'adopt: nothing is known of {first.device_kind!r}. Name the most similar chip: chip="gpu_h100_sxm".'
        )
    return chip, constants_for(chip, chip.network)


def _where(device: Any) -> dict[str, Any]:
    """Return where a device is, as compilers say it."""
    return {
        "process": device.process_index, "coords": getattr(device, "coords", None),
        "slice": slice_index(device),
    }  # fmt: skip
