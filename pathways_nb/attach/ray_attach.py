"""``pw.attach("ray", …)``: the same controller on islands of hosts of a Ray cluster (see ``runtime.cluster``)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from pathways_nb.errors import PlaceError, UsageError
from pathways_nb.runtime.cluster import ray_cluster
from pathways_nb.runtime.cluster.cluster_driver import ClusterDriver
from pathways_nb.runtime.cluster.heartbeats import UNRESPONSIVE_AFTER
from pathways_nb.runtime.cluster.host_island import HostAttachment, HostDied
from pathways_nb.runtime.cluster.host_watch import STANDSTILL
from pathways_nb.runtime.cluster.island_maker import RESOURCES, IslandMaker
from pathways_nb.runtime.cluster.ray_address import check_address
from pathways_nb.session import diagnosis, elasticity
from pathways_nb.session.attach_options import AttachOptions, ClusterOptions
from pathways_nb.session.controller_handle import Controller
from pathways_nb.session.session import Session
from pathways_nb.util import limits
from pathways_nb.util.json_text import shortened
from pathways_nb.util.progress import show_progress, tell_reader
from pathways_nb.util.words import counted

_MOST_HOSTS = 64
"""Largest number of hosts on a cluster made here: each is a process of 230 MB."""


_HINT = (
    "If that cluster asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH before Ray is imported; if it "
    "asks for none, attach to it in a kernel that has made no cluster of its own."
)


def spelled_out(asked: AttachOptions) -> AttachOptions:
    """Return the options with every count given, so that equal requests compare equal.

    Raises:
        PlaceError: a number is no count, devices do not divide into hosts, or there would be too many.
        UsageError: an option means nothing here.
    """
    options = asked.cluster or ClusterOptions()
    if options.address is not None:
        check_address(options.address)
    if options.name is not None and not (isinstance(options.name, str) and options.name.strip()):
        raise UsageError(
            f"attach('ray', name={shortened(options.name)}): the name of a controller is a text, such as name=\"lab\"."
        )
    islands = 2 if asked.islands is None else asked.islands
    devices = 4 if asked.devices_per_island is None else asked.devices_per_island
    per_host = devices if options.devices_per_host is None else options.devices_per_host
    limits.check_counts("attach", islands=islands, devices_per_island=devices, devices_per_host=per_host)
    if devices % per_host:
        raise PlaceError(
            f"attach('ray', devices_per_island={devices}, devices_per_host={per_host}): an island of {devices} devices "
            f"does not divide into hosts of {per_host}. Make devices_per_island a multiple of devices_per_host."
        )
    # A cluster that is given by its address may have any number of machines.
    hosts = islands * devices // per_host
    if options.address is None and hosts > _MOST_HOSTS:
        raise PlaceError(
            f"attach('ray', islands={islands}, …): {counted(hosts, 'host')} on this machine, each a process of its "
            f"own; at most {_MOST_HOSTS} are made. Ask for fewer, or give the address of a cluster."
        )
    if asked.dcn_latency:
        raise UsageError(
            f"attach('ray', dcn_latency={asked.dcn_latency:g}): messages take the time that they take here. Emulated "
            f"latency is for one machine: pw.attach('cpu', dcn_latency={asked.dcn_latency:g})."
        )
    after = options.unresponsive_after or UNRESPONSIVE_AFTER
    found = replace(options, devices_per_host=int(per_host), unresponsive_after=float(after))
    return AttachOptions(
        "ray", int(islands), int(devices), asked.dispatch, asked.pin, asked.policy, asked.hbm, cluster=found
    )


def controller(asked: AttachOptions) -> Controller:
    """Return a controller on a Ray cluster; its hosts are started at once.

    Args:
        asked: the options, as ``spelled_out`` returns them.

    Raises:
        UsageError: Ray is not installed.
        PlaceError: the cluster does not answer, or its hosts do not fit this process.
    """
    options = asked.cluster or ClusterOptions()
    connection = ray_cluster.connect(options.address, say_line)
    connection.notice_after(options.unresponsive_after)
    try:
        maker = _maker(connection, asked, options)
        attachment = _attachment(maker, asked)
        ray_cluster.tell_open_ports(connection, say_line)
    except HostDied as died:
        connection.release()
        raise PlaceError(f"attach('ray', address={options.address!r}): a host did not start: {died} {_HINT}") from None
    except BaseException:
        connection.release()
        raise
    # Islands have one budget, so the smallest host decides.
    budget = int(asked.hbm or min(link.facts.memory for i in attachment.islands for link in i.links))
    counts = (asked.devices_per_island or 0,) * asked.islands

    def start(session: Session) -> ClusterDriver:
        """Return the driver, which learns when the cluster is lost."""
        driver = _driver(session, attachment, maker)
        # Registered first: a loss between the two lines is then seen by one of them.
        connection.on_lost[maker] = partial(lose_cluster, session, driver)
        if connection.lost:  # meanwhile
            driver.lose_cluster(connection.lost)
        return driver

    made = Controller(asked, start, counts, (budget,) * asked.islands)

    def end() -> None:
        connection.on_lost.pop(maker, None)
        maker.end()
        connection.release()

    made.on_close, made.lost = end, lambda: connection.lost
    return made


def _maker(connection: ray_cluster.Connection, asked: AttachOptions, options: ClusterOptions) -> IslandMaker:
    platform = platform_of(connection.ray, asked.islands * (asked.devices_per_island or 0))
    return IslandMaker(
        connection.ray,
        options.devices_per_host or 1,
        platform,
        cores_of(asked, platform),
        by_device(options, platform),
        say_line,
        gate=connection.gate,
        unresponsive_after=options.unresponsive_after or UNRESPONSIVE_AFTER,
    )


def platform_of(ray: Any, devices: int) -> str:
    """Return the platform of a cluster's devices, as JAX calls it: accelerators if there are enough of them."""
    resources = ray.cluster_resources()
    for platform, name in RESOURCES.items():
        if resources.get(name, 0) >= devices:
            return platform
        if resources.get(name, 0):
            say_line(f"the cluster has {resources[name]:g} {name}s, fewer than {devices}: hosts take CPU devices.")
    return "cpu"


def by_device(options: ClusterOptions, platform: str) -> bool:
    """Return whether values go to other hosts from device to device."""
    return options.transfers == "device" if options.transfers else platform != "cpu"


def cores_of(asked: AttachOptions, platform: str) -> Callable[[int], Sequence[int]]:
    """Return a function that chooses the cores of each host."""
    here = asked.cluster is None or asked.cluster.address is None
    return _cores if asked.pin and platform == "cpu" and here else _no_cores


def _no_cores(host: int) -> Sequence[int]:
    return ()


def _attachment(maker: IslandMaker, asked: AttachOptions) -> HostAttachment:
    try:
        islands = maker.make_all(dict.fromkeys(range(asked.islands), asked.devices_per_island or 0))
    except BaseException:
        maker.end()
        raise
    return HostAttachment(tuple(islands), maker)


def _driver(session: Session, attachment: HostAttachment, maker: IslandMaker) -> ClusterDriver:
    # From here on its lines go to the display of the recording under way, if there is one.
    maker.say = session.say
    driver = ClusterDriver(
        attachment,
        session.machine,
        session.clock,
        session.note,
        partial(lose_island, session),
        lambda where: elasticity.lose(session, where.island),
        lambda island: elasticity.give_back(session, island),
        unresponsive_after=maker.unresponsive_after,
    )
    driver.on_standstill = partial(tell_standstill, session)
    return driver


def tell_standstill(session: Session) -> None:
    """Note what is known when programs are under way and hosts report nothing."""
    _tell(session, f"hosts have reported nothing for {STANDSTILL:g} s")


def lose_island(session: Session, island: int) -> None:
    """Note what is known when an island loses its hosts, and let no further call use it."""
    driver = session.driver_or_none
    if driver is not None:
        _tell(session, cast(ClusterDriver, driver).islands[island].loss)
    elasticity.withdraw(session, island)


def lose_cluster(session: Session, driver: ClusterDriver, why: str) -> None:
    """Note what is known when the cluster is lost, and fail everything."""
    try:
        _tell(session, "the cluster is lost")
    finally:
        driver.lose_cluster(why)


def _tell(session: Session, why: str) -> None:
    """Write down what is known now, and say where."""
    with contextlib.suppress(OSError):  # a full disk is no reason to lose more
        tell_reader(f"{why}: what was under way is written in {diagnosis.written(session, why)}")


def say_line(line: str) -> None:
    """Show what is going on, which ends in an ellipsis or is empty, or tell what has happened."""
    if not line or line.endswith("…"):
        show_progress(line)
    else:
        tell_reader(line)


def _cores(host: int) -> Sequence[int]:
    """Return the core of a host on this machine; none if there is only one."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return (usable[host % len(usable)],) if len(usable) > 1 else ()
