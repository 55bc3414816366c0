"""Costs of controller, hosts and launches: the part of a step that is neither work nor bytes.

The paper's account (Pathways, section 4.5 and Figures 5 to 7): the client calls, the controller sends one message to
each island at some cost for each host behind it, a host enqueues launches, a device begins, and the end is reported to
the client. Each of these is a parameter, because calibration measures them apart and dispatch modes pay them in
different numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from pathways_nb.cost.hardware.parameters import Origin, Parameters, duration


@dataclass(frozen=True, repr=False, kw_only=True)
class HostCosts(Parameters):
    """Seconds that a controller, hosts and launches take.

    Attributes:
        call: of the client's thread for one call of a program: Python, look-up, submission.
        message: of the controller for one message to one island, whatever its hosts.
        per_host: of the controller for each host that a message goes to.
        launch: of an island's host for each launch that it enqueues to its devices.
        notice: from the end of a program's last node until the client's thread knows of it.
        device_launch: on a device, before a node's own work begins.
        interference: on a device, for each node that begins while all other islands work, too; above 0 where hosts have
            no cores of their own and use those of the devices.
    """

    call: float = duration()
    message: float = duration()
    per_host: float = duration()
    launch: float = duration()
    notice: float = duration()
    device_launch: float = duration()
    # The only one with a default: only where devices are cores of the host is there any interference to measure.
    interference: float = duration(0.0)
    _title = "host"


_FIGURE_6 = "slope of the line through 2.3 ms at 16 hosts and 35 ms at 512 hosts, Pathways, Figure 6"
HOST = HostCosts(
    base="a usual host",
    call=1e-4,
    message=1e-4,
    per_host=6.59e-5,
    launch=2e-5,
    notice=1e-4,
    device_launch=5e-6,
    interference=0.0,
    origins=MappingProxyType(
        {
            "call": Origin("assumed", "a call through Python takes about 0.1 ms"),
            "message": Origin("assumed", "as a call"),
            "per_host": Origin("derived", _FIGURE_6),
            "launch": Origin("assumed", "enqueuing one executable takes tens of microseconds"),
            "notice": Origin("assumed", "as a call"),
            "device_launch": Origin("recalled", "a kernel launch on a GPU: about 5 us"),
            "interference": Origin("assumed", "hosts have cores of their own"),
        }
    ),
)
"""The host model where nothing was measured."""
