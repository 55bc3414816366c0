"""The parts of ``make gpu``: what is tried on the accelerators of this machine, else on virtual devices.

Each part runs in a process of its own, so that none can stop the others, and returns what it saw. Benches and
notebooks ask for virtual devices; here they get as many accelerators instead, where there are so many.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import nbformat
import numpy as np

import pathways_nb as pw
from pathways_nb.bench import dispatch, fidelity, report, tenants
from pathways_nb.bench.lab import ROOT
from pathways_nb.calibration.calibrate import calibrate
from pathways_nb.notebook.demo import execute
from pathways_nb.runtime import device_facts
from pathways_nb.session import default_controller

_attach = pw.attach
_OPS = 8
"""Ops of the profile that are shown."""
_UNANSWERED = "not answered yet"
"""In what a notebook prints of its questions, which nobody has answered here."""


class Seen(NamedTuple):
    """What a part saw.

    Args:
        text: for people.
        pictures: the captions and files of pictures.
    """

    text: str
    pictures: tuple[tuple[str, str], ...] = ()


class Machine(NamedTuple):
    """What parts run on: the ``kind`` and number of ``devices``, and their ``names``."""

    kind: str
    devices: int
    names: str

    @property
    def is_rehearsal(self) -> bool:
        """Whether there are only virtual devices."""
        return self.kind == "cpu"


def machine() -> Machine:
    """Return the accelerators of this machine, else eight virtual devices."""
    kind, devices = device_facts.found_devices()
    if kind is None:
        return Machine("cpu", 8, "virtual CPU devices")
    kinds = [device.device_kind for device in devices]
    return Machine(kind, len(devices), ", ".join(f"{kinds.count(one)} × {one}" for one in dict.fromkeys(kinds)))


def take_over() -> None:
    """Let ``pw.attach("cpu", …)`` attach as many accelerators, where there are so many; else virtual devices."""
    here = machine()

    def attach(kind: str = "auto", **options: Any) -> pw.Controller:
        if kind != "cpu" or here.is_rehearsal:
            return _attach(kind, **options)
        options = {"islands": 2, "devices_per_island": 4, **options}
        asked = options["islands"] * options["devices_per_island"]
        if asked > here.devices:
            print(f"{asked} devices are asked for and {here.devices} are here: virtual CPU devices instead")  # noqa: T201
            return _attach(kind, **options)
        return _attach(here.kind, **options)

    pw.attach = attach


def _two_places() -> tuple[pw.VirtualSlice, pw.VirtualSlice]:
    """Return two places on two islands; on one island, and the same device, if there is but one."""
    here = machine()
    if here.devices < 2:
        _attach(here.kind)
        return pw.virtual_slice(1, name="left"), pw.virtual_slice(1, name="right")
    each = 4
    if not here.is_rehearsal:
        # A power of two: it divides what the parts compute, and a TPU has boxes of it.
        slices = _attach(here.kind).islands
        most = min(slices) if len(slices) > 1 else slices[0] // 2
        each = 1 << most.bit_length() - 1
    _attach(here.kind, islands=2, devices_per_island=each)
    return pw.virtual_slice(each, island=0, name="left"), pw.virtual_slice(each, island=1, name="right")


def _step(left: pw.VirtualSlice, right: pw.VirtualSlice) -> Callable[[], Any]:
    """Return a step of two stages, compiled."""
    first = pw.jit(lambda x: jnp.tanh(x @ x.T) @ x, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    second = pw.jit(lambda x: (x * x).sum(), on=right, in_shardings=pw.P("x"))
    step = pw.program(lambda x: second(first(first(x))), name="step")
    x = pw.put(np.full((512, 512), 1e-3, np.float32), on=left, shardings=pw.P("x"))
    pw.wait(step(x))
    return lambda: pw.wait(step(x))


def quickstart(out: Path) -> Seen:
    """Run two computations on two islands, recorded."""
    left, right = _two_places()
    double = pw.jit(lambda v: v * 2, on=left, in_shardings=pw.P("x"))
    total = pw.jit(lambda v: v.sum(), on=right, in_shardings=pw.P("x"))
    size = 8 * left.size
    float(total(double(np.arange(size, dtype=np.float32))))  # compiles
    with pw.record("quickstart") as run:
        y = total(double(np.arange(size, dtype=np.float32)))
        found = float(y)
    assert found == size * (size - 1), f"{found} is not {size * (size - 1)}"
    run.savefig(out / "quickstart.svg")
    return Seen(
        f"sum of 2 × 0…{size - 1} = {found:g}, as it should be\n{run.summary_line()}", (("", "quickstart.svg"),)
    )


def two_tenants(out: Path) -> Seen:
    """Let two tenants with shares 1 and 2 compete, who always have work."""
    place, _ = _two_places()
    program = tenants.products(place, tenants.ROUNDS["medium"])
    events = tenants.compete(default_controller.get(), place, program, (1, 2), tenants.SECONDS, least=tenants.WINDOW)
    one, two = tenants.got(events, (1, 2))
    error = tenants.worst_error(events, (1, 2))
    worst = "" if error is None else f"; in the worst {tenants.WINDOW} gangs in a row a share was off by {error:.0%}"
    return Seen(f"of {len(events)} gangs: device time 1 : {two / one:.2f}, where 1 : 2 was asked for{worst}")


def profile(out: Path) -> Seen:
    """Record a step with the exact times of JAX's profiler, and its operations."""
    step = _step(*_two_places())
    with pw.profile("profile") as run:
        step()
    run.savefig(out / "profile.svg", show=("timeline",))
    return Seen(f"{run.summary_line()}\n\n{_longest(run)}", (("", "profile.svg"),))


def _longest(run: pw.Run) -> str:
    """Return the ops of a profile that take longest, with their seconds on all devices."""
    seconds: dict[str, float] = {}
    for name, start, end in zip(run.ops["name"], run.ops["start"], run.ops["end"], strict=True):
        seconds[str(name)] = seconds.get(str(name), 0.0) + float(end - start)
    longest = sorted(seconds.items(), key=lambda one: -one[1])[:_OPS]
    return (
        "\n".join(f"{name:<40} {lasts * 1e3:9.3f} ms on all devices" for name, lasts in longest) or "no ops were seen"
    )


def calibration(out: Path) -> Seen:
    """Calibrate the devices, quickly."""
    _two_places()
    return Seen(str(calibrate(quick=True)))


def simulated(out: Path) -> Seen:
    """Compare a step with its simulation, on one axis."""
    places = _two_places()
    step = _step(*places)
    with pw.record("real") as real:
        step()
    with _attach("sim:here"):
        twin = _step(*places)
        with pw.record("sim:here") as run:
            twin()
    compared = pw.compare(real, run)
    return Seen(f"{real.summary_line()}\n{run.summary_line()}\n{compared.summary_line()}")


def notebook(name: str) -> Callable[[Path], Seen]:
    """Return a part that executes a notebook of the course."""

    def run(out: Path) -> Seen:
        content = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
        # Its cells ask for virtual devices.
        first = "from pathways_nb.bench import _accelerator_parts\n_accelerator_parts.take_over()"
        content.cells.insert(0, nbformat.v4.new_code_cell(first))
        execute(content, ROOT / "notebooks")
        said = [
            text for cell in content.cells for output in cell.get("outputs", ()) if (text := output.get("text", ""))
        ]
        lines = [line for line in "".join(said).splitlines() if _UNANSWERED not in line]
        return Seen("\n".join(["all cells ran; they print:", *lines]))

    run.__doc__ = f"Execute every cell of notebook {name}."
    return run


def bench(name: str) -> Callable[[Path], Seen]:
    """Return a part that runs a bench in its short form."""

    def run(out: Path) -> Seen:
        take_over()
        here = machine()
        dispatch.SHORT = (tuple(n for n in dispatch.SHORT[0] if n <= here.devices), *dispatch.SHORT[1:])  # type: ignore[assignment]
        fidelity.QUICK, fidelity.ROUNDS = True, 5
        short = report.has_short_form(name)
        measured = report.measure(name, short=short)
        return Seen(report.as_text(measured | {"detail": None}))

    run.__doc__ = f"Run the bench {name}, in short form."
    return run


PARTS: dict[str, Callable[[Path], Seen]] = {
    "quickstart": quickstart,
    "two tenants at 1:2": two_tenants,
    "profile": profile,
    "calibrate": calibration,
    "sim:here beside real": simulated,
    "notebook 02": notebook("02_dispatch"),
    "notebook 04": notebook("04_memory"),
    "bench dispatch": bench("dispatch"),
    "bench overlap": bench("overlap"),
    "bench fidelity": bench("fidelity"),
}
"""The parts by name, in their order."""
