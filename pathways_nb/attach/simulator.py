"""``pw.attach("sim", …)``: the same controller on simulated islands of any chip (see ``runtime.sim.sim_driver``)."""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

from pathways_nb.cost.calibration.this_machine import THIS_MACHINE
from pathways_nb.cost.model import CostModel
from pathways_nb.errors import UsageError, is_index
from pathways_nb.runtime.sim.sim_driver import SimDriver
from pathways_nb.runtime.sim.simulated_islands import EventQueue
from pathways_nb.runtime.sim.simulated_pod import SimulatedIsland, SimulatedPod
from pathways_nb.session.attach_options import AttachOptions, SimulatorOptions
from pathways_nb.session.controller_handle import Controller
from pathways_nb.session.session import Session
from pathways_nb.trace.metrics import counted
from pathways_nb.util import limits
from pathways_nb.util.json_text import shortened

_SHORT = re.compile(r"sim(?::(?P<chip>[^:]+))?(?::(?P<islands>\d{1,9})x(?P<devices>\d{1,9}))?", re.ASCII)
_MOST_COMPUTED = 64
"""Devices whose values are computed beside them."""


class _Measurer(NamedTuple):
    """Who measures this machine."""

    model: Callable[[Session | None], CostModel]
    usual: Callable[[], contextlib.AbstractContextManager[Session]]


_measurer: list[_Measurer] = []


def measure_here_by(
    model: Callable[[Session | None], CostModel], usual: Callable[[], contextlib.AbstractContextManager[Session]]
) -> None:
    """Register who measures this machine: it attaches devices, and so stands above this room.

    Args:
        model: the cost model of these devices, or of those that are usual here.
        usual: what ``pw.attach("auto")`` would choose, for the length of a block.
    """
    _measurer[:] = [_Measurer(model, usual)]


def is_simulated(kind: object) -> bool:
    """Whether ``"sim"``, or an abbreviation that begins with it, was asked for."""
    return isinstance(kind, str) and (kind == "sim" or kind.startswith("sim:"))


def spelled_out(asked: AttachOptions, attached: Session | None) -> AttachOptions:
    """With what an abbreviation such as ``"sim:tpu_v3:4x32"`` stands for, and with numbers where none were given.

    Raises:
        UsageError: it is no abbreviation, an option says otherwise, or an option is none.
        PlaceError: a number of islands or devices that is none.
    """
    found, options = _SHORT.fullmatch(asked.kind), asked.simulated or SimulatorOptions()
    if found is None:
        raise UsageError(f'attach({shortened(asked.kind)}): write "sim", "sim:CHIP" or "sim:CHIP:ISLANDSxDEVICES".')
    given = {"chip": options.chip, "islands": asked.islands, "devices_per_island": asked.devices_per_island}
    said: dict[str, Any] = {
        "chip": found["chip"],
        "islands": found["islands"] and int(found["islands"]),
        "devices_per_island": found["devices"] and int(found["devices"]),
    }
    for name, value in said.items():
        if value is not None and given[name] is not None:
            raise UsageError(f"attach({asked.kind!r}, {name}={given[name]!r}): {asked.kind!r} says {name}={value!r}.")
    chip, islands, devices = (given[name] if value is None else value for name, value in said.items())
    like = _islands_here(attached) if chip == THIS_MACHINE else (8,)
    islands = len(like) if islands is None else islands
    devices = like[0] if devices is None else devices
    islands, devices = _counts(asked.kind, options, islands, devices)
    return replace(
        asked, kind="sim", islands=islands, devices_per_island=devices, simulated=replace(options, chip=chip)
    )


def _counts(kind: str, options: SimulatorOptions, islands: Any, each: Any) -> tuple[int, int]:
    """The numbers of islands and of devices on each, if so many can be simulated, with these options."""
    per_host = {} if options.devices_per_host is None else {"devices_per_host": options.devices_per_host}
    limits.check_counts("attach", islands=islands, devices_per_island=each, **per_host)
    islands, each = operator.index(islands), operator.index(each)
    said = f"attach({kind!r}, islands={shortened(islands)}, devices_per_island={shortened(each)})"
    limits.check_simulated(said, islands, islands * each)
    for count in per_host.values():
        limits.check_simulated(f"attach(devices_per_host={shortened(count)})", 1, count)
    _check(options, islands * each)
    return islands, each


def _check(options: SimulatorOptions, devices: int) -> None:
    limits.check_noise(options.noise)
    if not isinstance(options.values, bool):
        raise UsageError(f"attach(values={options.values!r}): True or False is needed.")
    if not is_index(options.seed):
        raise UsageError(f"attach(seed={options.seed!r}): a whole number is needed.")
    if options.values and devices > _MOST_COMPUTED:
        raise UsageError(
            f"attach(values=True): {counted(devices, 'device')} are simulated, and values are computed on as many "
            f"virtual CPU devices, at most {_MOST_COMPUTED}. Simulate fewer, or leave values out."
        )


def controller(asked: AttachOptions, attached: Session | None) -> Controller:
    """A controller on simulated islands.

    Raises:
        UsageError: no chip, or an unknown one. PlaceError: a topology that the chip cannot have.
    """
    options = asked.simulated or SimulatorOptions()
    model = _model(options, attached)
    island = model.topology(asked.devices_per_island or 0, options.devices_per_host, options.topology)
    pod = SimulatedPod(tuple(SimulatedIsland(index, island) for index in range(asked.islands)))
    budget, agenda = int(asked.hbm or model.chip.device.hbm_bytes), EventQueue()

    def start(one: Session) -> SimDriver:
        return SimDriver(
            pod, one.machine, model, agenda, one.note, asked.dcn_latency, options.noise, options.seed, one.say
        )

    counts = (asked.devices_per_island or 0,) * asked.islands
    made = Controller(asked, start, counts, (budget,) * asked.islands, agenda.clock)
    _ = made.driver  # started now: the thread that attaches takes part from now on (see ``runtime.sim.turns``)
    return made


def _model(options: SimulatorOptions, attached: Session | None) -> CostModel:
    if options.chip is None:
        raise UsageError('attach("sim"): which chip? Add chip="tpu_v5p", or pw.chip(…).replace(…), or a file of yours.')
    if isinstance(options.chip, CostModel):
        if options.network is not None:
            raise UsageError(f"attach(network={options.network!r}): {options.chip.name!r} is a model with a network.")
        return options.chip
    if options.chip != THIS_MACHINE:
        return CostModel.of(options.chip, options.network)
    if attached is not None and (known := attached.attach_options.simulated) and known.chip == THIS_MACHINE:
        return cast(SimDriver, attached.driver).model
    return _measurer[0].model(attached)


def _islands_here(attached: Session | None) -> tuple[int, ...]:
    """What is attached, else what would be."""
    if attached is not None:
        return attached.islands
    with _measurer[0].usual() as chosen:
        return chosen.islands
