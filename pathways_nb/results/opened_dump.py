"""Open a dump of XLA, or one scheduled program's text, as a run: the launch from inside, priced for its chip.

Where the devices lie is not in a dump. They are taken to be hosts that are filled one after another, and on a torus the
most nearly square arrangement, in order; what a collective costs depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pathways_nb.cost.hardware import tables
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hardware.chips import chip as chip_of
from pathways_nb.cost.hardware.topology import make_topology
from pathways_nb.cost.hlo.hlo_schedule import schedule_of
from pathways_nb.cost.hlo.hlo_text import parse
from pathways_nb.cost.launch.constants import constants
from pathways_nb.cost.launch.launch_timing import launch_seconds
from pathways_nb.cost.launch.op_seconds import LaunchPlace, price_of
from pathways_nb.cost.launch.opened_launch import open_launch
from pathways_nb.errors import PlaceError, UsageError, nearest
from pathways_nb.results.dump_files import DumpedModule, module_of, modules_in
from pathways_nb.results.launch_runs import launched_run
from pathways_nb.results.run import Run
from pathways_nb.util.words import counted


def open_dump(path: Path, chip: str | PathLike[str] | Chip | None, module: str | int | None) -> Run:
    """Return the launch of a program of a dump as a run.

    Args:
        path: of the folder, or of a file with a scheduled program.
        chip: that it was compiled for; None where the dump says it.
        module: which program: its name or its number; None for the one with the longest schedule.

    Raises:
        UsageError: it is no dump, has no such program, or does not say its chip.
    """
    found = modules_in(path) if path.is_dir() else [module_of(path)]
    where = f"load({str(path)!r})"
    said = chip if chip is not None else next((name for one in found if (name := one.chip_name)), None)
    if said is None:
        on_cpu = ".cpu_after_" in found[0].path.name
        why = (
            "was compiled for CPUs, and its schedule is priced for a chip"
            if on_cpu
            else "does not say which chip it is for"
        )
        raise UsageError(f"{where}: {found[0].path.name} {why}; add chip=, one of {', '.join(tables.names('chips'))}.")
    priced, failed = list[PricedModule](), dict[str, UsageError]()
    for one in found:
        try:
            priced.append(_priced(one, chip_of(chip if chip is not None else one.chip_name or said), where))
        except UsageError as error:
            failed[one.name] = error  # one text that cannot be read does not hide the others, unless it is asked for
    wanted = [error for name, error in failed.items() if not priced or (module is not None and _is_named(name, module))]
    if wanted:
        raise wanted[0]
    priced.sort(key=lambda one: -one.seconds)
    chosen, name, place, _, assumed = _chosen(priced, module, where)
    known = constants(place.chip.name)
    opened = open_launch(
        chosen.text, place, known, compiler=_compiler(chosen),
        **chosen.texts,  # type: ignore[arg-type]  # buffers, memory and live ranges, as far as they are there
    )  # fmt: skip
    more = []
    if chosen.kind not in ("", "TPU" if place.chip.interconnect == "torus" else "GPU"):
        more += [f"the schedule is that of the {chosen.kind}'s compiler, the times are those of {place.chip.name}"]
    if assumed:
        more += [f"it sends between slices, whose number its text does not say: {place.slices} are assumed"]
    if failed:
        more += [f"{counted(len(failed), 'program')} cannot be read, the first because {next(iter(failed.values()))}"]
    opened = replace(opened, notes=(*opened.notes, *more))
    listed = [(one.module.name, one.seconds) for one in priced]
    return launched_run(opened, name, place.chip.name, len(place.places), listed)


class PricedModule(NamedTuple):
    """A program of a dump with what its launch takes.

    Args:
        module: the program.
        name: of it in its text.
        place: its devices.
        seconds: in the compiler's order.
        assumed: whether the number of slices is.
    """

    module: DumpedModule
    name: str
    place: LaunchPlace
    seconds: float
    assumed: bool


def _priced(module: DumpedModule, chip: Chip, where: str) -> PricedModule:
    """Return a program with what its launch takes.

    Raises:
        UsageError: it cannot be read, or there are no constants of the chip.
    """
    text, known = module.text, constants(chip.name)
    try:
        read = parse(text)
        schedule = schedule_of(read, read.devices)
        said = schedule.slices
        if said and read.devices % said:
            raise ValueError(
                f"its {counted(read.devices, 'device')} do not divide into the {said} slices that it sends to"
            )
    except (ValueError, KeyError, IndexError, StopIteration) as error:
        raise UsageError(f"{where}: {module.path.name} cannot be read: {error}") from error
    # A text that does not say who takes part in what it sends says by that alone that there are several slices.
    place = place_of(chip, read.devices, said or (2 if read.devices % 2 == 0 else 1))
    seconds = launch_seconds(schedule, price_of(place, known)).ordered
    return PricedModule(module, read.name, place, seconds, said is None and place.slices > 1)


def _chosen(priced: Sequence[PricedModule], module: str | int | None, where: str) -> PricedModule:
    """Return the program that is asked for; of several the longest.

    Args:
        priced: programs, the longest first.
        module: name or number.
        where: the call, for the error.

    Raises:
        UsageError: there is none; the nearest names are listed.
    """
    names = [one.module.name for one in priced]
    if module is None:
        return priced[0]
    for one, name in zip(priced, names, strict=True):
        if _is_named(name, module):
            return one
    near = names if len(names) < 6 else nearest(str(module), names) or names[:5]
    raise UsageError(f"{where}: there is no program module={module!r}; there are {', '.join(near)}.")


def _is_named(name: str, module: str | int) -> bool:
    """Return whether a program of a dump is the one asked for, by its number or its name with or without that."""
    if isinstance(module, int):
        return name.startswith(f"module_{module:04d}.")
    return module in (name, name.partition(".")[2])


def _compiler(module: DumpedModule) -> str:
    """Return what compiled a program, as far as its file's name says it."""
    return " ".join(filter(None, (module.kind, "compiler of", module.path.name)))


def place_of(chip: Chip, devices: int, slices: int = 1) -> LaunchPlace:
    """Return devices of which only the number is known: hosts one after another, on a torus in order.

    Args:
        chip: of all of them.
        devices: their number.
        slices: over which they are divided.
    """
    per_host = min(chip.devices_per_host, devices)
    shape: tuple[int, ...] = (devices,)
    if chip.interconnect == "torus":
        try:
            shape = make_topology(chip, devices // slices).shape
        except PlaceError:
            shape = (math.ceil(devices / chip.devices_per_chip),)  # a part of an island: in a row
    chips = np.arange(devices) // chip.devices_per_chip % math.prod(shape)
    coords = np.stack(np.unravel_index(chips, shape), 1)
    padded = np.zeros((devices, max(3, len(shape))), int)
    padded[:, : len(shape)] = coords
    places = [
        {"process": n // per_host, "coords": where, "slice": n * slices // devices}
        for n, where in enumerate(padded.tolist())
    ]
    return LaunchPlace(chip, places, per_host)
