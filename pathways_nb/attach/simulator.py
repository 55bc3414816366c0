"""``pw.attach("sim", …)``: the same controller on simulated islands of any chip (see ``runtime.sim.sim_driver``).

Expands abbreviations such as ``"sim:tpu_v3:4x32"``, checks the options, and makes the simulated pod and its cost model.
Real devices are attached in ``attach``; the simulation itself is ``runtime.sim``.

``"sim:here"`` needs a model of this machine, which only ``calibration`` can measure. Since ``calibration`` attaches
devices and so imports this package, it registers itself here (``measure_here_by``) instead of being imported.
"""

from __future__ import annotations

import contextlib
import operator
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast, get_args

from pathways_nb.cost.calibration.this_machine import THIS_MACHINE
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hardware.host_costs import HostCosts
from pathways_nb.cost.hardware.networks import Network
from pathways_nb.cost.hardware.parameters import check
from pathways_nb.cost.hardware.tables import find
from pathways_nb.cost.model import CostModel
from pathways_nb.errors import UsageError, is_index
from pathways_nb.runtime.sim import chip_compiler
from pathways_nb.runtime.sim.chip_compiler import CompilerChoice
from pathways_nb.runtime.sim.sim_driver import SimDriver
from pathways_nb.runtime.sim.simulated_pod import SimulatedIsland, SimulatedPod
from pathways_nb.session.attach_options import AttachOptions, SimulatorOptions
from pathways_nb.session.controller_handle import Controller
from pathways_nb.session.session import Session
from pathways_nb.timing.event_queue import EventQueue
from pathways_nb.util import limits
from pathways_nb.util.json_text import shortened
from pathways_nb.util.words import counted

_SHORT = re.compile(r"sim(?::(?P<chip>[^:]+))?(?::(?P<islands>\d{1,9})x(?P<devices>\d{1,9}))?", re.ASCII)
_MOST_COMPUTED = 64
"""Largest number of simulated devices for which ``values=True`` is allowed: each needs a virtual CPU device."""
_COMPILER = "PATHWAYS_COMPILER"
"""The variable of the environment that says what ``compiler="auto"`` means in a process and in those that it starts."""
_told: set[str] = set()
"""Lines on compilers that were printed before in this process."""


class _Measurer(NamedTuple):
    """The two functions with which ``calibration`` measures this machine; see ``measure_here_by``."""

    model: Callable[[Session | None], CostModel]
    usual: Callable[[], contextlib.AbstractContextManager[Session]]


# Empty until ``calibration`` is imported, which ``import pathways_nb`` does.
_measurer: list[_Measurer] = []


def measure_here_by(
    model: Callable[[Session | None], CostModel], usual: Callable[[], contextlib.AbstractContextManager[Session]]
) -> None:
    """Register the functions that measure this machine.

    Args:
        model: returns the cost model of the attached devices, or if there are none of this machine's default devices.
        usual: context manager that attaches what ``pw.attach("auto")`` would choose, for the length of a block.
    """
    _measurer[:] = [_Measurer(model, usual)]


def is_simulated(kind: object) -> bool:
    """Return whether ``kind`` is ``"sim"`` or an abbreviation that begins with ``"sim:"``."""
    return isinstance(kind, str) and (kind == "sim" or kind.startswith("sim:"))


def spelled_out(asked: AttachOptions, attached: Session | None) -> AttachOptions:
    """Return the options with abbreviations expanded and every count given, so that equal requests compare equal.

    Args:
        asked: as given to ``pw.attach``, for instance with the kind ``"sim:tpu_v3:4x32"``.
        attached: the controller attached now; ``"sim:here"`` takes its numbers of islands and devices.

    Raises:
        UsageError: the abbreviation is malformed, contradicts an option, or an option has no meaning.
        PlaceError: a number of islands or devices is no count.
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
    if found["chip"] and chip != THIS_MACHINE:
        find(Chip, "chips", chip, f"attach({shortened(asked.kind)}): chip {chip!r}")
    # ``sim:here`` has the shape of what is attached, so that a real program runs in it unchanged.
    like = _islands_here(attached) if chip == THIS_MACHINE else (8,)
    islands = len(like) if islands is None else islands
    devices = like[0] if devices is None else devices
    islands, devices = _counts(asked.kind, options, islands, devices)
    options = replace(options, chip=chip, compiler=_compiler(options))
    return replace(asked, kind="sim", islands=islands, devices_per_island=devices, simulated=options)


def _compiler(options: SimulatorOptions) -> CompilerChoice:
    """Return whose compiler nodes are compiled by: as the user says, else as the environment does.

    Raises:
        UsageError: the environment says something else.
    """
    said = os.environ.get(_COMPILER, "auto") if options.compiler == "auto" else options.compiler
    for choice in get_args(CompilerChoice):
        if said == choice:
            return choice
    raise UsageError(f"{_COMPILER}={said}: choose from {', '.join(map(repr, get_args(CompilerChoice)))}.")


def _counts(kind: str, options: SimulatorOptions, islands: Any, each: Any) -> tuple[int, int]:
    """Return the numbers of islands and of devices on each as plain integers, checked with the other options.

    Raises:
        UsageError: an option has no meaning.
        PlaceError: the numbers are no counts, or too many to simulate.
    """
    per_host = {} if options.devices_per_host is None else {"devices_per_host": options.devices_per_host}
    limits.check_counts("attach", islands=islands, devices_per_island=each, **per_host)
    # Plain integers: options are compared with those attached before, and saved with runs.
    islands, each = operator.index(islands), operator.index(each)
    said = f"attach({kind!r}, islands={shortened(islands)}, devices_per_island={shortened(each)})"
    limits.check_simulated(said, islands, islands * each)
    for count in per_host.values():
        limits.check_simulated(f"attach(devices_per_host={shortened(count)})", 1, count)
    _check(options, islands * each)
    return islands, each


def _check(options: SimulatorOptions, devices: int) -> None:
    """Refuse a noise, a seed or ``values`` that have no meaning, and ``values`` for too many devices.

    Args:
        options: those of the simulator.
        devices: number of devices of all islands.

    Raises:
        UsageError: naming the option.
    """
    limits.check_noise(options.noise)
    if not isinstance(options.values, bool):
        raise UsageError(f"attach(values={options.values!r}): True or False is needed.")
    _check_host(options.host)
    if not is_index(options.seed):
        raise UsageError(f"attach(seed={options.seed!r}): a whole number is needed.")
    if options.values and devices > _MOST_COMPUTED:
        raise UsageError(
            f"attach(values=True): {counted(devices, 'device')} are simulated, and values are computed on as many "
            f"virtual CPU devices, at most {_MOST_COMPUTED}. Simulate fewer, or leave values out."
        )


def _check_host(host: object) -> None:
    """Refuse costs of hosts that are no costs.

    Raises:
        UsageError: naming the nearest cost, or what a cost may be.
    """
    if host is not None and not isinstance(host, (Mapping, HostCosts)):
        raise UsageError(
            f"attach(host={shortened(host)}): write seconds by name, such as host={{'launch': 5e-6, 'call': 2e-5}}."
        )
    if isinstance(host, Mapping):
        check(HostCosts, "attach(host=…)", host)


def controller(asked: AttachOptions, attached: Session | None) -> Controller:
    """Return a controller on simulated islands.

    Args:
        asked: the options, as ``spelled_out`` returns them.
        attached: the controller attached now, of whose devices ``"sim:here"`` takes the cost model.

    Raises:
        UsageError: no chip is given, or an unknown one, or its compiler is wanted and not there.
        PlaceError: the chip cannot have such a topology.
    """
    options = asked.simulated or SimulatorOptions()
    model = _model(options, attached)
    island = model.topology(asked.devices_per_island or 0, options.devices_per_host, options.topology)
    priced = chip_compiler.about(model, options.compiler)
    # Once in a process: a notebook attaches again and again.
    note = priced if "install" in priced and priced not in _told else ""
    _told.add(priced)
    pod = SimulatedPod(tuple(SimulatedIsland(index, island) for index in range(asked.islands)), note=note)
    budget, agenda = int(asked.hbm or model.chip.device.hbm_bytes), EventQueue()

    def start(one: Session) -> SimDriver:
        """Return the driver of one session on the simulated pod."""
        return SimDriver(
            pod, one.machine, model, agenda, one.note, asked.dcn_latency, options.noise, options.seed, one.say,
            options.compiler,
        )  # fmt: skip

    counts = (asked.devices_per_island or 0,) * asked.islands
    made = Controller(asked, start, counts, (budget,) * asked.islands, agenda.clock)
    _ = made.driver  # start now: this thread takes turns from here on (see ``runtime.sim.thread_turns``)
    return made


def _model(options: SimulatorOptions, attached: Session | None) -> CostModel:
    """Return the cost model of the simulated devices, with the hosts that were asked for."""
    found = _model_of_chip(options, attached)
    if options.host is None:
        return found
    host = options.host if isinstance(options.host, HostCosts) else found.host.replace(**options.host)
    return CostModel(found.chip, found.network, host, found.efficiency, found.name)


def _model_of_chip(options: SimulatorOptions, attached: Session | None) -> CostModel:
    """Return the cost model of the simulated devices, with the usual or measured hosts.

    Raises:
        UsageError: no chip is given, an unknown one, or a network beside a model that contains one.
    """
    if options.chip is None:
        raise UsageError('attach("sim"): which chip? Add chip="tpu_v5p", or pw.chip(…).replace(…), or a file of yours.')
    if isinstance(options.chip, CostModel):
        if options.network is not None:
            raise UsageError(f"attach(network={options.network!r}): {options.chip.name!r} is a model with a network.")
        return options.chip
    if options.chip != THIS_MACHINE:
        chip = find(Chip, "chips", options.chip, f"attach(chip={shortened(options.chip)})")
        if options.network is None:
            return CostModel.of(chip)
        asked = f"attach(network={shortened(options.network)})"
        return CostModel.of(chip, find(Network, "networks", options.network, asked))
    if attached is not None and (known := attached.attach_options.simulated) and known.chip == THIS_MACHINE:
        # Already simulating this machine: simulated devices cannot be measured, so keep their model.
        return cast(SimDriver, attached.driver).model
    return _measurer[0].model(attached)


def _islands_here(attached: Session | None) -> tuple[int, ...]:
    """Return the number of devices of each attached island, or of those that ``pw.attach("auto")`` would make."""
    if attached is not None:
        return attached.islands
    with _measurer[0].usual() as chosen:
        return chosen.islands
