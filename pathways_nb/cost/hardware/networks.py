"""Networks between hosts (DCN): bandwidth of a host and latency of a message.

A network is a parameter of its own and not a part of a chip, so that the same chips can be simulated on another one;
a chip's own NICs are only the default (``Chip.network``).
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

from pathways_nb.cost.hardware import tables
from pathways_nb.cost.hardware.parameters import Parameters, duration, fraction, rate


@dataclass(frozen=True, repr=False, kw_only=True)
class Network(Parameters):
    """A network that joins hosts through one NIC each, with full bisection.

    Attributes:
        host_bw: bytes/s of one host in one direction.
        rtt: seconds there and back of a small message.
        efficiency: the share of ``host_bw`` that large messages reach.
    """

    host_bw: float = rate("bytes/s")
    rtt: float = duration()
    # Not required: where nothing is known of it, the nominal bandwidth counts.
    efficiency: float = fraction(1.0)

    @property
    def latency(self) -> float:
        """Seconds of a small message one way."""
        # Measurements and data sheets give the time there and back, a transfer goes one way.
        return self.rtt / 2

    @property
    def host_bw_effective(self) -> float:
        """Bytes/s of one host for large messages."""
        return self.host_bw * self.efficiency


def network(name: str | PathLike[str] | Network) -> Network:
    """Return a network by its name, or from a JSON file of your own; see ``Network`` for its fields.

    Args:
        name: such as ``"tpu_dcn"``; or the path of a file ``{"base": "tpu_dcn", "rtt": 1e-3}``.

    Raises:
        UsageError: an unknown name, or a file that cannot be read or says what no network has.
    """
    return tables.find(Network, "networks", name)
