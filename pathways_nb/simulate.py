"""``pw.attach("sim", …)``: the same controller on simulated islands of any chip (see ``backends.sim``)."""

from __future__ import annotations

import re
from os import PathLike
from typing import Any

from pathways_nb.attached import Controller, Specification
from pathways_nb.backends.pod import Pod, SimulatedIsland
from pathways_nb.backends.sim import SimDriver
from pathways_nb.backends.virtual import Agenda
from pathways_nb.cost.chips import Chip
from pathways_nb.cost.model import Model
from pathways_nb.cost.networks import Network
from pathways_nb.cost.parameters import is_count
from pathways_nb.errors import PlaceError, UsageError

_SHORT = re.compile(r"sim(?::(?P<chip>[^:]+))?(?::(?P<islands>\d+)x(?P<devices>\d+))?")


def is_simulated(kind: object) -> bool:
    """Whether ``"sim"``, or an abbreviation that begins with it, was asked for."""
    return isinstance(kind, str) and (kind == "sim" or kind.startswith("sim:"))


def spelled_out(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options with those that an abbreviation such as ``"sim:tpu_v3:4x32"`` stands for.

    Raises:
        UsageError: it is no abbreviation, or says what an option says otherwise.
    """
    found = _SHORT.fullmatch(kind)
    if found is None:
        raise UsageError(
            f'attach({kind!r}): write "sim", "sim:CHIP" or "sim:CHIP:ISLANDSxDEVICES", as sim:tpu_v3:4x32.'
        )
    said = {
        "chip": found["chip"],
        "islands": int(found["islands"]) if found["islands"] else None,
        "devices_per_island": int(found["devices"]) if found["devices"] else None,
    }
    for name, value in said.items():
        if value is not None and options.get(name) is not None:
            raise UsageError(
                f"attach({kind!r}, {name}={options[name]!r}): the abbreviation says {name}={value!r} already."
            )
    return options | {name: value for name, value in said.items() if value is not None}


def model_of(chip: str | PathLike[str] | Chip | Model | None, network: str | Network | None) -> Model:
    """The cost model that is asked for.

    Raises:
        UsageError: no chip, or an unknown one.
    """
    if isinstance(chip, Model):
        return chip
    if chip is None:
        raise UsageError('attach("sim"): which chip? Add chip="tpu_v5p", or pw.chip(…).replace(…), or a file of yours.')
    return Model.of(chip, network)


def pod_of(model: Model, islands: int, devices: int, per_host: int | None, topology: tuple[int, ...] | None) -> Pod:
    """Islands of a model's chip.

    Raises:
        PlaceError: a number that is none, or a topology that the chip cannot have.
    """
    counts = {"islands": islands, "devices_per_island": devices}
    if per_host is not None:
        counts["devices_per_host"] = per_host
    for name, count in counts.items():
        if not is_count(count):
            raise PlaceError(f"attach({name}={count!r}): a whole number of at least 1 is needed.")
    one = model.topology(devices, per_host, topology)
    return Pod(tuple(SimulatedIsland(index, one) for index in range(islands)))


def simulated(specification: Specification, model: Model, pod: Pod) -> Controller:
    """A controller on a pod."""
    agenda = Agenda()
    counts = tuple(len(island.devices) for island in pod.islands)
    budget = int(specification.hbm or model.chip.device.hbm_bytes)

    def start(controller: Controller) -> SimDriver:
        return SimDriver(pod, controller.machine, model, agenda, controller.note, specification.dcn_latency)

    return Controller(specification, start, counts, (budget,) * len(counts), agenda.clock)
