"""``pw.attach``: check the options, choose devices, and make their controller the current one.

The new controller replaces the current one last, when everything has been checked, so that a wrong call leaves the
attached controller unchanged. Attaching the same options again returns the same controller: a cell can be run twice
without losing its buffers.

Devices of this process are in ``local_attach``, simulated ones in ``simulator``, hosts of a Ray cluster in
``ray_attach``, the choice of the current controller in ``session.default_controller``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from os import PathLike
from typing import Any, Literal, get_args

from pathways_nb.attach import local_attach, simulator
from pathways_nb.controller.policies import Policy, policy_of
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hardware.host_costs import HostCosts
from pathways_nb.cost.hardware.networks import Network
from pathways_nb.cost.model import CostModel
from pathways_nb.errors import PlaceError, UsageError, did_you_mean
from pathways_nb.results.opened_runs import runs
from pathways_nb.runtime.sim.chip_compiler import CompilerChoice
from pathways_nb.session import default_controller, interrupted
from pathways_nb.session.attach_options import AttachOptions, ClusterOptions, SimulatorOptions
from pathways_nb.session.controller_handle import Controller
from pathways_nb.session.session import Session
from pathways_nb.util import forks, interrupts, limits
from pathways_nb.util.option_names import checked_options

KINDS = ("auto", "cpu", "gpu", "tpu", "sim", "ray")
_PLATFORMS = {"cuda": "gpu", "rocm": "gpu", "metal": "gpu", "proxy": "auto", "pathways": "auto"}
"""What other tools call such devices, and the kind that attaches them."""


@checked_options()
def attach(
    kind: Literal["auto", "cpu", "gpu", "tpu", "sim", "ray"] | str = "auto",
    *,
    islands: int | str | Sequence[Sequence[Any]] | None = None,
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
    compiler: CompilerChoice = "auto",
    host: Mapping[str, float] | HostCosts | None = None,
    address: str | None = None,
    name: str | None = None,
    transfers: Literal["device", "ray"] | None = None,
    unresponsive_after: float | None = None,
) -> Controller:
    """Attach devices and make their controller the current one.

    Args:
        kind: ``"cpu"`` makes virtual devices, ``"gpu"`` and ``"tpu"`` take the devices that JAX lists, ``"auto"`` takes
            accelerators if there are any and prints its choice. ``"sim"`` simulates any number of devices of ``chip``
            with the same controller; ``"sim:tpu_v3:4x32"`` gives chip, islands and devices of each, and ``"sim:here"``
            simulates the devices that are attached now, as ``pw.calibrate`` has measured them. ``"ray"`` takes hosts
            of a Ray cluster, each a process with its own JAX devices.
        islands: number of islands (default 2 on CPU and on Ray, 1 simulated, one for each slice of accelerators); or
            for each island its devices, or their positions among those that JAX lists: accelerators, or with ``"cpu"``
            JAX's own CPU devices in place of virtual ones. On accelerators also ``"slice"`` or ``"host"``: an island
            for each of those.
        devices_per_island: number of devices of each island, on CPU or Ray (default 4) or simulated (default 8); on
            accelerators all are shared out by default. Islands of TPUs within a slice are aligned boxes of its grid.
        devices_per_host: number of devices of each simulated host; ``None`` takes that of the chip. On a Ray cluster,
            those of each host: an island of 4 devices on hosts of 2 is two hosts, which fail together.
        dispatch: ``"parallel"`` (asynchronous) or ``"sequential"``: a node is sent when the one before it is done
            (Pathways, Fig. 4).
        pin: whether each CPU island gets cores of its own.
        policy: which program's next gang is enqueued first: ``"stride"`` (clients in proportion to their shares),
            ``"fifo"``, ``"priority"``, ``"shortest"``, or a function ``policy(ready, state) -> gang``.
        hbm: bytes of memory of each device. Programs wait for free memory, and those that need more are refused.
            ``None`` takes what the devices report, else what the table of chips has, less what others than this
            controller hold there; virtual CPU devices have no limit.
        dcn_latency: seconds that each message of the controller takes to an island's host, emulated. Messages overlap:
            two that are sent together arrive together. Completions, and values between islands, are not delayed.
        chip: chip of the simulated devices: a name (``"tpu_v5p"``), ``pw.chip(…).replace(…)``, or the path of a file. A
            JAX device is a core on TPU v2 and v3, and a whole chip from v4 on.
        network: network between simulated islands; ``None`` takes the NICs of the chip's hosts.
        topology: number of chips along each axis of a simulated island's torus; ``None`` takes the most
            nearly square or cubic arrangement.
        noise: standard deviation of the logarithm of the random factor on the duration of simulated nodes and
            transfers.
        seed: seed of that noise. The same seed and the same calls after attaching or ``pw.reset`` give the same record,
            with several client threads too: they take turns, and time advances only while all of them wait.
        values: whether to compute simulated values on CPU devices as well, so that they can be fetched; for small
            programs only.
        compiler: of simulated nodes: ``"own"`` compiles those of some length by the chip's own compiler, for seconds,
            memory and ``run.ops``; ``"cpu"`` estimates them from their jaxpr and a CPU compilation; ``"auto"`` does the
            first where that compiler is installed (``python -m pathways_nb compilers install``).
        host: seconds that the controller and its hosts take of simulated time, by name: ``"launch"`` (of an island's
            host for each node), ``"call"`` (of a client's thread), ``"message"`` (of the controller, to an island),
            ``"per_host"``, ``"notice"``, ``"device_launch"``. Those that are not named stay as usual: assumed, or as
            ``pw.calibrate`` has measured them. ``pw.calibration().model.host`` gives another chip this machine's.
        address: ``host:port`` of a running Ray cluster; ``None`` makes one on this machine: for this process, or with
            ``name`` for all notebooks of this user.
        name: of a controller on a Ray cluster that several notebooks share: the first one makes it, with these
            options, and others attach by its name alone. A line says whether it was made or joined.
        transfers: the way of values between hosts of a Ray cluster: ``"device"`` is from device to device by JAX's
            transfer servers, ``"ray"`` through Ray's object store; ``None`` takes the first on accelerators, and the
            second on CPUs, where it is the faster one.
        unresponsive_after: seconds of silence after which a host of a Ray cluster counts as dead and is replaced
            (default 30): its process was stopped or swapped out, or code in it holds Python's lock. One that computes
            or compiles answers, however long that takes.

    Returns:
        The current controller: the one that was attached before if its options were equal, else a new one.

    Raises:
        PlaceError: the numbers do not fit the devices, or exceed what was seen to work (``util.limits``).
        UsageError: an unknown option, kind or dispatch mode, or a meaningless ``hbm``, latency, noise or cost; JAX has
            no such devices here, cannot start them, or runs in several processes (``jax.process_count() > 1``); Ray is
            not installed, this process is connected to another cluster, or the controller of that ``name`` has other
            options.
    """
    forks.refuse()
    interrupts.guard()
    interrupted.watch_cells()
    before = default_controller.peek()
    shape = None if topology is None else _shape(topology)
    on_hosts = kind == "ray"
    per_host = None if on_hosts else devices_per_host
    simulated = SimulatorOptions(chip, network, per_host, shape, noise, seed, values, compiler, host)
    if not simulator.is_simulated(kind):
        if isinstance(kind, str) and (meant := _PLATFORMS.get(kind.lower())) is not None:
            raise UsageError(f'attach({kind!r}): those devices are attached by pw.attach("{meant}").')
        _check_choice("kind", kind, KINDS)
        _refuse_for_real(kind, simulated)
    _refuse_elsewhere(kind, address=address, name=name, transfers=transfers, unresponsive_after=unresponsive_after)
    _check_choice("dispatch", dispatch, ("parallel", "sequential"))
    _check_choice("compiler", compiler, get_args(CompilerChoice))
    # Only checked here: the session makes the policy when it makes its core.
    policy_of(policy)
    limits.check_memory(hbm)
    limits.check_latency(dcn_latency)
    asked = AttachOptions(kind, islands, devices_per_island, dispatch, pin, policy, hbm, float(dcn_latency))
    if simulator.is_simulated(kind):
        return _simulate(simulator.spelled_out(replace(asked, simulated=simulated), before), before)
    if on_hosts:
        if transfers is not None:
            _check_choice("transfers", transfers, ("device", "ray"))
        limits.check_silence(unresponsive_after)
        cluster = ClusterOptions(address, name, devices_per_host, transfers, unresponsive_after)
        return _attach_cluster(replace(asked, cluster=cluster), before)
    return _attach_local(asked, before)


def _attach_local(asked: AttachOptions, before: Session | None) -> Controller:
    """Return a controller on devices of this process: the attached one if its options are equal, else a new one."""
    options = local_attach.spelled_out(asked)
    # A cell that is run again keeps its devices, compiled programs and values.
    if isinstance(before, Controller) and before.attach_options == options:
        return before
    made = local_attach.controller(options)
    default_controller.replace(made)
    if asked.kind == "auto":
        print(f"attached {options.kind}: {made.size_text}; {local_attach.other_choice(options.kind)}")
    return made


def _simulate(asked: AttachOptions, before: Session | None) -> Controller:
    """Return a controller on simulated devices: the attached one if its options are equal, else a new current one.

    Args:
        asked: the options, abbreviations already expanded.
        before: the controller that is attached now, if any.
    """
    if isinstance(before, Controller) and before.attach_options == asked:
        return before
    made = simulator.controller(asked, before)
    if asked.simulated is not None and asked.simulated.values:
        # The simulator moves no values. A second controller of the same shape on CPU devices computes them.
        made.value_session = local_attach.controller(
            AttachOptions("cpu", asked.islands, asked.devices_per_island, "parallel", True)
        )
    default_controller.replace(made)
    return made


def _attach_cluster(asked: AttachOptions, before: Session | None) -> Controller:
    """Return a controller on a Ray cluster: the attached one if its options are equal, else a new current one."""
    from pathways_nb.attach import ray_attach  # late: most processes never need it

    spelled = ray_attach.spelled_out(asked)
    name = asked.cluster.name if asked.cluster is not None else None
    # By name, what is left out is as the shared controller has it, so only what was given can be compared.
    wanted = spelled if name is None else asked
    # A cluster that is lost never comes back: the same options then mean a new one.
    if isinstance(before, Controller) and before.attach_options == wanted and not before.lost():
        return before
    if name is None:
        made = ray_attach.controller(spelled)
    else:
        from pathways_nb.attach import shared

        made = shared.controller(asked, spelled)
    default_controller.replace(made)
    return made


def _refuse_elsewhere(kind: str, **options: Any) -> None:
    """Refuse options of a cluster for other kinds, naming the first one.

    Raises:
        UsageError: an option is given.
    """
    for option, value in options.items():
        if kind != "ray" and value is not None:
            raise UsageError(f'attach({kind!r}, {option}={value!r}): {option} is for a Ray cluster, pw.attach("ray").')


def _shape(topology: Sequence[int]) -> tuple[int, ...]:
    """Return ``topology`` as a tuple, which options need so that they can be compared.

    Raises:
        PlaceError: it is no sequence, or text such as ``"4x4x4"``, whose letters are no sizes.
    """
    if isinstance(topology, str) or not isinstance(topology, Iterable):
        raise PlaceError(
            f"attach(topology={topology!r}): write how many chips there are along each axis, such as topology=(4, 4)."
        )
    return tuple(topology)


def _refuse_for_real(kind: str, asked: SimulatorOptions) -> None:
    """Refuse options of simulated devices where ``kind`` is real, naming the first one.

    Raises:
        UsageError: an option differs from its default.
    """
    usual = SimulatorOptions()
    for option in fields(asked):
        value = getattr(asked, option.name)
        if value != getattr(usual, option.name):
            ray = f', or for hosts of a Ray cluster, pw.attach("ray", {option.name}=…)'
            also = ray if hasattr(ClusterOptions, option.name) else ""
            raise UsageError(
                f"attach({kind!r}, {option.name}={value!r}): {option.name} is for simulated devices, "
                f'pw.attach("sim", {option.name}=…){also}.'
            )


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not one of ``choices``.

    Raises:
        UsageError: naming all choices, and the nearest one.
    """
    if value not in choices:
        meant = did_you_mean(value, choices)
        raise UsageError(f"attach({name}={value!r}): choose one of {', '.join(map(repr, choices))}.{meant}")


def reset() -> None:
    """Free buffers, programs and records of the current controller without a kernel restart."""
    forks.refuse()
    runs.clear()
    controller = default_controller.peek()
    if controller is not None:
        controller.reset()
