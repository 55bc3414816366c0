"""``pw.attach``: choose devices and make their controller the current one. Devices are made when first needed."""

from __future__ import annotations

import operator
import time
from collections.abc import Sequence
from dataclasses import fields
from os import PathLike
from typing import Any, Literal

from pathways_nb.attach import simulator
from pathways_nb.controller.policies import Policy, policy_of
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hardware.networks import Network
from pathways_nb.cost.model import CostModel
from pathways_nb.errors import PlaceError, UsageError, did_you_mean
from pathways_nb.results.run import runs
from pathways_nb.runtime import islands as islands_module
from pathways_nb.runtime.local.local_driver import LocalDriver
from pathways_nb.runtime.lowering.executables import Executables
from pathways_nb.session import default_controller
from pathways_nb.session.attach_options import AttachOptions, SimulatorOptions
from pathways_nb.session.controller_handle import Controller
from pathways_nb.session.session import Session
from pathways_nb.util import forks, limits
from pathways_nb.util.json_text import shortened

KINDS = ("auto", "cpu", "gpu", "tpu", "sim")
_executables = Executables(time.perf_counter)


def attach(
    kind: Literal["auto", "cpu", "gpu", "tpu", "sim"] | str = "auto",
    *,
    islands: int | Sequence[Sequence[int]] | None = None,
    devices_per_island: int | None = None,
    devices_per_host: int | None = None,
    dispatch: Literal["parallel", "sequential"] = "parallel",
    pin: bool = True,
    policy: str | Policy = "stride",
    hbm: float | None = None,
    dcn_latency: float = 0.0,
    chip: str | PathLike[str] | Chip | CostModel | None = None,
    network: str | Network | None = None,
    topology: Sequence[int] | None = None,
    noise: float = 0.0,
    seed: int = 0,
    values: bool = False,
) -> Controller:
    """Attach devices and make their controller the current one.

    Args:
        kind: ``"cpu"`` makes virtual devices, ``"gpu"`` and ``"tpu"`` take what JAX shows, ``"auto"`` takes
            accelerators if there are any and says what it chose. ``"sim"`` simulates any number of devices of ``chip``
            with the same controller; ``"sim:tpu_v3:4x32"`` says chip, islands and devices of each, and ``"sim:here"``
            is what is attached now, as ``pw.calibrate`` has measured it.
        islands: how many (default 2 on CPU, 1 simulated), or on accelerators a list of device positions for each.
        devices_per_island: on CPU, default 4; simulated, default 8.
        dispatch: ``"parallel"`` (asynchronous) or ``"sequential"``: steps go out one after another (Pathways, Fig. 4).
        pin: give each CPU island cores of its own.
        policy: which program's next gang goes first: ``"stride"`` (clients by their shares), ``"fifo"``,
            ``"priority"``, ``"shortest"``, or a function ``policy(ready, state) -> gang``.
        hbm: bytes of memory of each device; programs wait for it, and those that need more are refused. By default
            what devices tell, which virtual CPU devices do not.
        dcn_latency: seconds that each message of the controller takes to an island's host, emulated. Messages overlap:
            two that are sent at once arrive at once. What comes back, and values between islands, is not delayed.
        chip: of simulated devices: a name (``"tpu_v5p"``), ``pw.chip(…).replace(…)``, or the path of a file. What JAX
            calls a device is a core on TPU v2 and v3, and a chip from v4 on.
        network: between simulated islands; by default what the NICs of the chip's hosts give.
        devices_per_host, topology: of simulated islands: devices of each host, and chips along each axis of the torus.
        noise, seed: simulated nodes and transfers last longer or shorter at random: by a factor whose logarithm has
            this standard deviation. The same seed and the same calls, once attached or reset, give the same record,
            those of several threads, too: client threads take turns, and time passes only when all of them wait.
        values: compute what is simulated on CPU devices, too, so that values can be asked for; small programs only.

    Raises:
        PlaceError: the numbers do not fit what there is, or are beyond what was seen to work (``util.limits``).
        UsageError: an unknown kind or mode of dispatch, an ``hbm``, a latency or a noise that means nothing.
    """
    forks.refuse()
    before = default_controller.peek()
    shape = None if topology is None else _shape(topology)
    simulated = SimulatorOptions(chip, network, devices_per_host, shape, noise, seed, values)
    if not simulator.is_simulated(kind):
        _check_choice("kind", kind, KINDS)
        _refuse_for_real(kind, simulated)
    _check_choice("dispatch", dispatch, ("parallel", "sequential"))
    policy_of(policy)
    limits.check_memory(hbm)
    limits.check_latency(dcn_latency)
    if simulator.is_simulated(kind):
        asked_for = AttachOptions(
            kind, islands, devices_per_island, dispatch, pin, policy, hbm, float(dcn_latency), simulated
        )
        return _simulate(simulator.spelled_out(asked_for, before), before)
    found, devices = islands_module.accelerators() if kind != "cpu" else (None, [])
    chosen = _choose(kind, found)
    if chosen == "cpu":
        islands = 2 if islands is None else islands
        devices_per_island = 4 if devices_per_island is None else devices_per_island
        islands, devices_per_island = _virtual(islands, devices_per_island)
    asked = _hashable(islands), devices_per_island
    attach_options = AttachOptions(chosen, *asked, dispatch, pin, policy, hbm, float(dcn_latency))
    if isinstance(before, Controller) and before.attach_options == attach_options:
        return before
    made = _controller(attach_options, islands, devices)
    default_controller.replace(made)
    if kind == "auto":
        print(f"attached {chosen}: {made.size_text}; {_other_choice(found)}")
    return made


def _simulate(asked: AttachOptions, before: Session | None) -> Controller:
    if isinstance(before, Controller) and before.attach_options == asked:
        return before
    made = simulator.controller(asked, before)
    if asked.simulated is not None and asked.simulated.values:
        made.twin = _controller(
            AttachOptions("cpu", asked.islands, asked.devices_per_island, "parallel", True), None, []
        )
    default_controller.replace(made)
    return made


def _shape(topology: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(topology)
    except TypeError:
        raise PlaceError(
            f"attach(topology={topology!r}): write how many chips there are along each axis, such as topology=(4, 4)."
        ) from None


def _refuse_for_real(kind: str, asked: SimulatorOptions) -> None:
    usual = SimulatorOptions()
    for option in fields(asked):
        value = getattr(asked, option.name)
        if value != getattr(usual, option.name):
            raise UsageError(
                f"attach({kind!r}, {option.name}={value!r}): {option.name} is for simulated devices, "
                f'pw.attach("sim", {option.name}=…).'
            )


def _controller(attach_options: AttachOptions, islands: Any, devices: list[Any]) -> Controller:
    if attach_options.kind != "cpu":
        attachment = islands_module.attach_accelerators(attach_options.kind, devices, islands)  # type: ignore[arg-type]
        counts = tuple(len(island.devices) for island in attachment.islands)
        hbm = [int(attach_options.hbm or islands_module.capacity(island)) for island in attachment.islands]
        return Controller(attach_options, lambda c: _local(c, attachment), counts, tuple(hbm))
    count, each = attach_options.islands, attach_options.devices_per_island or 0
    budgets = (int(attach_options.hbm or 0),) * count

    def start(session: Session) -> LocalDriver:
        return _local(session, islands_module.attach_cpu(count, each, attach_options.pin))

    return Controller(attach_options, start, (each,) * count, budgets)


def _local(session: Session, attachment: islands_module.Attachment) -> LocalDriver:
    latency = session.attach_options.dcn_latency
    return LocalDriver(attachment, session.machine, session.clock, _executables, session.note, latency)


def _choose(kind: str, found: str | None) -> str:
    if kind == "auto":
        return found or "cpu"
    if kind in ("gpu", "tpu") and found != kind:
        raise UsageError(
            f'attach("{kind}"): JAX sees {"no accelerator" if found is None else f"a {found}"} here. '
            f'Use pw.attach("{found or "cpu"}") or pw.attach("auto").'
        )
    return kind


def _other_choice(found: str | None) -> str:
    if found:
        return 'for virtual CPU devices: pw.attach("cpu")'
    return 'for other numbers: pw.attach("cpu", islands=2, devices_per_island=8)'


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        meant = did_you_mean(value, choices)
        raise UsageError(f"attach({name}={value!r}): choose one of {', '.join(map(repr, choices))}.{meant}")


def _virtual(islands: Any, each: Any) -> tuple[int, int]:
    """The numbers of CPU islands and of devices on each, if so many can be made."""
    limits.check_counts("attach", islands=islands, devices_per_island=each)
    islands, each = operator.index(islands), operator.index(each)
    asked = f"attach(islands={shortened(islands)}, devices_per_island={shortened(each)})"
    limits.check_virtual(asked, islands, islands * each)
    return islands, each


def _hashable(islands: Any) -> Any:
    if islands is None or isinstance(islands, int):
        return islands
    try:
        return tuple(tuple(map(operator.index, group)) for group in islands)
    except TypeError:
        raise PlaceError(
            f"attach(islands={islands!r}): give a whole number, or on accelerators a list of device positions each."
        ) from None


def reset() -> None:
    """Free buffers, programs and records of the current controller without a kernel restart."""
    forks.refuse()
    runs.clear()
    controller = default_controller.peek()
    if controller is not None:
        controller.reset()
