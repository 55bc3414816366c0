"""``pw.attach("ray", name=…)``: a controller in an actor, which several notebooks find by its name and share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from pathways_nb.attach.ray_attach import (
    by_device,
    cores_of,
    lose_cluster,
    lose_island,
    platform_of,
    say_line,
    tell_standstill,
)
from pathways_nb.errors import PlaceError, UsageError, did_you_mean
from pathways_nb.runtime.cluster import ray_cluster
from pathways_nb.runtime.cluster.gate import Gate
from pathways_nb.runtime.cluster.heartbeats import UNRESPONSIVE_AFTER
from pathways_nb.runtime.cluster.host_island import HostAttachment, HostDied
from pathways_nb.runtime.hosts.travel import by_value
from pathways_nb.runtime.shared.controller_actor import Terms
from pathways_nb.runtime.shared.controller_link import RayControllerLink, ask, create, find, others
from pathways_nb.runtime.shared.remote_core import RemoteMachine
from pathways_nb.runtime.shared.shared_driver import SharedDriver
from pathways_nb.session import elasticity
from pathways_nb.session.attach_options import AttachOptions, ClusterOptions, option_name
from pathways_nb.session.controller_handle import Controller
from pathways_nb.session.session import Session
from pathways_nb.util.words import counted


@dataclass(eq=False)
class Guest:
    """Stands for the maker of islands, which is the shared controller: its islands are not this kernel's to end."""

    ray: Any
    actor: Any
    gate: Gate

    def make(self, index: int, devices: int) -> None:
        """Have an island added for all kernels."""
        ask(self.ray, self.actor, "add", devices, gate=self.gate)

    @property
    def clocks(self) -> Any:
        """How far the hosts' clocks are from the shared controller's, by island and host."""
        return ask(self.ray, self.actor, "clocks", gate=self.gate)

    def synchronise(self) -> None:
        """Have the shared controller compare the hosts' clocks with its own."""
        ask(self.ray, self.actor, "synchronise", gate=self.gate)

    def release(self) -> None:
        """Do nothing: other kernels go on."""


def controller(asked: AttachOptions, spelled: AttachOptions) -> Controller:
    """Return this kernel's handle of a shared controller, which is made if there is none of that name.

    Args:
        asked: the options as given; what is left out is as the controller has it.
        spelled: the options with every count given, for a new controller.

    Raises:
        UsageError: the controller has other islands or terms than asked for.
        PlaceError: it did not start.
    """
    options = asked.cluster or ClusterOptions()
    name = options.name or ""
    connection = ray_cluster.connect(options.address, say_line, shared=True)
    connection.notice_after(options.unresponsive_after)
    try:
        actor, said = find_or_make(connection.ray, name, spelled)
        terms, sizes, budgets = ask(connection.ray, actor, "about", gate=connection.gate)
        ray_cluster.tell_open_ports(connection, say_line)
        _check_same(asked, terms, name)
    except HostDied as died:
        connection.release()
        raise PlaceError(f"attach('ray', name={name!r}): the controller did not start: {died}.") from None
    except BaseException:
        connection.release()
        raise

    def start(session: Session) -> SharedDriver:
        """Return the driver of this kernel, which joins the controller."""
        link = RayControllerLink(connection.ray, actor, connection.gate)
        # Removed before this kernel joined: its own resource manager must not place anything there.
        for where in link.welcome.lost_devices:
            session.resources.remove(where)
        islands = tuple(link.island(view) for view in link.welcome.islands)
        driver = SharedDriver(
            HostAttachment(islands, Guest(connection.ray, actor, connection.gate)),
            session.machine,  # type: ignore[arg-type]
            session.clock,
            link,
            session.note,
            partial(lose_island, session),
            lambda where: elasticity.follow_loss(session, where),
            lambda island: elasticity.follow_return(session, island),
            lambda island, budget: elasticity.follow_joining(session, island, budget),
            link.welcome.lost_devices,
        )
        driver.on_standstill = partial(tell_standstill, session)
        connection.on_lost[actor] = partial(lose_cluster, session, driver)
        if connection.lost:  # meanwhile
            driver.lose_cluster(connection.lost)
        return driver

    def end() -> None:
        connection.on_lost.pop(actor, None)
        connection.release()

    made = Controller(asked, start, tuple(sizes), tuple(budgets), machine=RemoteMachine)
    try:
        _ = made.driver  # join now: a shared controller ends when no kernel joins it for a while
    except HostDied as died:
        end()
        raise PlaceError(f"attach('ray', name={name!r}): the controller ended meanwhile: {died}.") from None
    except BaseException:
        end()
        raise
    made.on_close, made.lost = end, lambda: connection.lost
    say_line(said)
    return made


def find_or_make(ray: Any, name: str, spelled: AttachOptions) -> tuple[Any, str]:
    """Return the actor of a shared controller, and a line that says whether it was there.

    A mistyped name would make another controller without a word, so the line offers a near one that exists.
    """
    found = find(ray, name)
    if found is not None:
        return found, f"joined the controller {name!r}"
    meant = did_you_mean(name, others(ray))
    return _create(ray, name, spelled), f"made the controller {name!r}, which was not there.{meant}"


def _create(ray: Any, name: str, spelled: AttachOptions) -> Any:
    options = spelled.cluster or ClusterOptions()
    per_host, devices = options.devices_per_host or 1, spelled.devices_per_island or 0
    platform = platform_of(ray, spelled.islands * devices)
    say_line(f"starting the controller {name!r} with {counted(spelled.islands, 'island')} of hosts …")
    terms = Terms(
        spelled.islands, devices, per_host, spelled.dispatch, by_value(spelled.policy), spelled.hbm, platform,
        option_name(spelled.policy), spelled.pin, by_device(options, platform),
        options.unresponsive_after or UNRESPONSIVE_AFTER,
    )  # fmt: skip
    return create(ray, name, terms, cores_of(spelled, platform))


def _check_same(asked: AttachOptions, terms: Terms, name: str) -> None:
    """Refuse options that differ from those of the controller, naming the first.

    Raises:
        UsageError: one differs.
    """
    options = asked.cluster or ClusterOptions()
    pairs = (
        ("islands", asked.islands, terms.islands),
        ("devices_per_island", asked.devices_per_island, terms.devices),
        ("devices_per_host", options.devices_per_host, terms.per_host),
        ("transfers", options.transfers, "device" if terms.by_device else "ray"),
        ("policy", None if asked.policy == "stride" else option_name(asked.policy), terms.policy_name),
        ("pin", None if asked.pin else False, terms.pin),
        ("dispatch", None if asked.dispatch == "parallel" else asked.dispatch, terms.dispatch),
        ("hbm", asked.hbm, terms.hbm),
        ("unresponsive_after", options.unresponsive_after, terms.unresponsive_after),
    )
    # ``None`` stands for what was not given, or is the default: the kernel takes what there is.
    for option, wanted, has in pairs:
        if wanted is not None and wanted != has:
            raise UsageError(
                f"attach('ray', name={name!r}, {option}={wanted!r}): the controller {name!r} has {option}={has!r}. "
                f"Leave {option} out to share it, or choose another name."
            )
