"""``pw.calibrate``: measure the attached devices once, store the result for every later session, simulate with it.

Assumed throughout: all devices of all islands work at the same time, as in a program that uses all of them. Virtual
CPU devices of an island share its cores, so each is measured while the others work, too; ``Efficiency.at_once`` says
how much faster fewer of them are. Other load on the machine meanwhile is part of the figures, and of their noise.

A calibration holds for one processor, number of cores, JAX version and set of islands, and is refused elsewhere. Only a
quick one is then replaced without asking, which takes some seconds.
"""

from __future__ import annotations

import contextlib
import os
import platform as system
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pathways_nb.attach import simulator
from pathways_nb.attach.attach import attach
from pathways_nb.calibration.measure import measure
from pathways_nb.cost.calibration import this_machine
from pathways_nb.cost.calibration.calibrated import Calibration, OutdatedError, load
from pathways_nb.cost.model import CostModel
from pathways_nb.errors import UsageError
from pathways_nb.runtime import device_facts
from pathways_nb.session import default_controller
from pathways_nb.session.calls import link_models
from pathways_nb.session.session import Session
from pathways_nb.util.host_info import machine
from pathways_nb.util.progress import show_progress, tell_reader
from pathways_nb.util.words import counted, plural

_Shape = tuple[str, tuple[int, ...]]
"""A kind of device, and the number of devices of each island."""
_kept: dict[_Shape, Calibration] = {}
"""Calibrations that this process has measured or read."""


def calibrate(quick: bool = False) -> Calibration:
    """Return the calibration of the attached devices, measured now and stored for ``"sim:here"``.

    Measures launches and the controller's own work, classes of operations, collectives and transfers through a
    controller of the same islands, after waiting for work under way; on CPU these are other virtual devices than the
    attached ones, on the same cores. Takes up to half a minute, with a line of progress past two seconds. An interrupt
    leaves everything as it was. The file is stored under ``$XDG_DATA_HOME``, else ``~/.local/share``.

    Args:
        quick: fewer classes, sizes and repeats, in some seconds.

    Returns:
        The model, with the noise of each class and its error on sizes that the fit has not seen.

    Raises:
        UsageError: the attached devices are simulated, or are accelerators that are being recorded, are dispatched
            sequentially or have an emulated latency.
    """
    controller = default_controller.get()
    found = _measured(controller, quick)
    found.save(_path(_shape(controller)))
    return found


def calibration(path: str | Path | None = None) -> Calibration:
    """Return the stored calibration of the attached devices.

    Args:
        path: of a file that ``Calibration.save`` wrote on this machine; None for the one that ``pw.calibrate`` stored.

    Raises:
        UsageError: there is none, it is damaged, or it is of another machine or version.
        FileNotFoundError: no such file.
    """
    controller = default_controller.get()
    if path is not None:
        return _loaded(path, controller)
    found = _stored(controller)
    if found is None:
        islands = _islands_text(_shape(controller))
        raise UsageError(f"calibration(): there is none of {islands} yet. Make it: pw.calibrate().")
    return found


def calibrated(controller: Session | None) -> CostModel:
    """Return the cost model of this machine: the stored one, else one that is measured quickly now.

    A stored quick calibration that does not hold on this machine is measured again, as quickly.

    Args:
        controller: whose devices; None for those that ``pw.attach("auto")`` would choose.

    Raises:
        UsageError: the stored one is of another machine or version and not a quick one, or damaged.
    """
    with contextlib.nullcontext(controller) if controller is not None else usual() as chosen:
        why = f"no calibration of {_islands_text(_shape(chosen))} yet"
        try:
            found = _stored(chosen)
        except OutdatedError as error:
            # A full one took half a minute and was asked for: it is not replaced without a word of the user.
            if not error.quick:
                raise
            found, why = None, error.why
        if found is None:
            tell_reader(f"{why}: measuring quickly; pw.calibrate() measures more, for later sessions")
            found = _measured(chosen, quick=True)
        return found.model


def _measured(controller: Session, quick: bool) -> Calibration:
    """Return a calibration measured now, and keep it for this process."""
    shape = _shape(controller)
    with _undisturbed(controller) as chosen:
        fitted = this_machine.fit(measure(chosen, quick, show_progress))
    model = this_machine.model_of(fitted, f"here: {_islands_text(shape)}")
    found = _kept[shape] = Calibration(model, tuple(fitted.judge()), _machine(controller), quick)
    return found


@contextlib.contextmanager
def _undisturbed(controller: Session) -> Iterator[Session]:
    """Yield a current controller of the same islands without a user's options, on which nothing is under way.

    Raises:
        UsageError: accelerators that are recorded, dispatched sequentially or have an emulated latency: they cannot be
            attached a second time, so the user has to attach them without.
    """
    # What is under way would share the cores with what is measured.
    if controller.driver_or_none is not None:
        controller.wait_all()
    asked = controller.attach_options
    if asked.kind == "cpu":
        policy = "stride" if asked.policy == "fifo" else "fifo"  # equal options would give the same controller
        counts = {"islands": asked.islands, "devices_per_island": asked.devices_per_island}
        with attach("cpu", **counts, pin=asked.pin, policy=policy) as other:
            yield other
    elif asked.dispatch != "parallel" or asked.dcn_latency or controller.recordings:
        raise UsageError(
            f"calibrate(): {controller!r} {'is being recorded' if controller.recordings else 'delays what is measured'}"
            f'. Call it outside of any recording, after pw.attach({asked.kind!r}, dispatch="parallel", dcn_latency=0).'
        )
    else:
        yield controller


@contextlib.contextmanager
def usual() -> Iterator[Session]:
    """Yield a controller of the devices that ``pw.attach("auto")`` would attach, for the length of the block."""
    kind, _ = device_facts.found_devices()
    with attach(kind or "cpu") as controller:
        yield controller


def _stored(controller: Session) -> Calibration | None:
    """Return the calibration of these islands that is kept or stored; None if there is none."""
    shape = _shape(controller)
    # Each file is read once in a process: a simulation asks for it at every attach.
    if shape not in _kept and (path := _path(shape)).exists():
        _kept[shape] = _loaded(path, controller)
    return _kept.get(shape)


def _stored_model(controller: Session) -> CostModel | None:
    """Return the model of these islands that is kept or stored; None if there is none."""
    found = _stored(controller)
    return None if found is None else found.model


def _loaded(path: str | Path, controller: Session) -> Calibration:
    """Return the calibration in a file if it holds on this machine.

    Raises:
        OutdatedError: it is of another machine.
    """
    found = load(path)
    found.refuse_elsewhere(_machine(controller), str(path))
    return found


def _shape(controller: Session) -> _Shape:
    """Return the kind and number of the attached devices.

    Virtual devices that were lost or added since do not count: the machine below them is the same.

    Raises:
        UsageError: the devices are simulated.
    """
    asked = controller.attach_options
    if asked.kind not in ("cpu", "gpu", "tpu"):
        raise UsageError(f'calibrate(): {controller!r} has no devices to measure. Attach some: pw.attach("cpu").')
    if asked.kind != "cpu":
        return asked.kind, controller.islands
    if isinstance(asked.islands, int):
        return asked.kind, (asked.devices_per_island or 0,) * asked.islands
    return asked.kind, tuple(map(len, asked.islands))  # JAX's own devices, by their positions


def _islands_text(shape: _Shape) -> str:
    """Return the islands in words."""
    kind, islands = shape
    sizes = "+".join(map(str, islands)) if len(set(islands)) > 1 else str(islands[0])
    return f"{counted(len(islands), 'island')} × {sizes} {kind} {plural(max(islands), 'device')}"


def _machine(controller: Session) -> dict[str, Any]:
    """Return what a calibration holds for: another processor, number of cores, version or island is another machine."""
    kind, islands = _shape(controller)
    known = machine()
    processor = _processor() if kind == "cpu" else controller.driver.attachment.islands[0].devices[0].device_kind
    return {"processor": processor, "cores": known["cores"], "system": system.system(), "jax": version("jax"),
            "devices": kind, "islands": list(islands)}  # fmt: skip


def _processor() -> str:
    """Return the system's name of its processor."""
    # Linux; ``platform.processor`` says no more than "x86_64" there.
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return system.processor() or system.machine()


def _path(shape: _Shape) -> Path:
    """Return the file for islands of this shape."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    kind, islands = shape
    return Path(home) / "pathways_nb" / f"calibration-{kind}-{'-'.join(map(str, islands))}.json"


# ``attach`` is below this package and must not import it, so it is given the functions for "sim:here".
simulator.measure_here_by(calibrated, usual)
link_models.read_models_by(_stored_model)
