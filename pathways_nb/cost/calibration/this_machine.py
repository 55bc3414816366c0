"""The fitted seconds of this machine as a chip, a network, hosts and shares, each number with its origin.

A device is modelled as a chip of its own at a switch. Rates are those of a device that works alone; where devices share
cores, ``Efficiency.at_once`` says how many of them run at that rate at the same time. The result is an ordinary
``CostModel``, so that a simulation of this machine uses the same code as one of a pod; parameters that were not
measured keep their usual values and say so in their origin.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from pathways_nb.cost.calibration.fitted import MachineFit
from pathways_nb.cost.calibration.samples import Measured, Sample
from pathways_nb.cost.collectives.kinds import BY_NAME, KINDS
from pathways_nb.cost.efficiency import EFFICIENCY, Efficiency
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hardware.host_costs import HostCosts
from pathways_nb.cost.hardware.networks import Network
from pathways_nb.cost.hardware.parameters import Origin, rules
from pathways_nb.cost.hardware.topology import make_topology
from pathways_nb.cost.model import CostModel

THIS_MACHINE = "here"
"""Name of the chip that stands for the attached devices as they were measured."""
MEASURED = Origin("measured here")
_COUNTED = Origin("measured here", "counted")
_TAKEN = Origin("assumed", "a device is taken as a chip at a switch")
_NOT_MEASURED = "not measured here; "
_PRODUCTS = {"matmul": "fp32_flops", "matmul bfloat16": "bf16_flops"}
_Values = dict[str, tuple[Any, Origin]]


def fit(measured: Measured) -> MachineFit:
    """Return all fits of the measurements."""
    bandwidths = dict.fromkeys(("hbm_bytes", "hbm_bw", "link_bw", "nic_bw", "pcie_bw"), (1.0, MEASURED))
    latencies = dict.fromkeys(("start_latency", "nic_rtt", "pcie_latency"), (0.0, MEASURED))
    # Bytes a second of 1 and no latency: seconds by the closed forms are bytes over a link then.
    unit: Chip = _parameters(Chip, "a byte a second", _interconnect(measured) | bandwidths | latencies)
    return MachineFit(measured, make_topology(unit, measured.devices))


def model_of(fitted: MachineFit, name: str) -> CostModel:
    """Return the cost model of this machine while all devices of all islands work.

    Args:
        fitted: all fits.
        name: of the model.
    """
    # In this order: the network takes its rate from memory where there is one island, and the chip from the network.
    memory = _memory(fitted)
    network: Network = _parameters(Network, name, _network(fitted, memory))
    chip: Chip = _parameters(Chip, name, _chip(fitted, memory, network))
    host: HostCosts = _parameters(HostCosts, name, _host(fitted))
    efficiency: Efficiency = _parameters(Efficiency, name, _efficiency(fitted, chip))
    return CostModel(chip, network, host, efficiency, name)


def _parameters(cls: type[Any], name: str, values: _Values) -> Any:
    """Return parameters with their origins."""
    origins = MappingProxyType({field: origin for field, (_, origin) in values.items()})
    return cls(base=name, origins=origins, **{field: value for field, (value, _) in values.items()})


def _interconnect(measured: Measured) -> _Values:
    """Return how devices are joined, which no measurement tells."""
    counted = {"devices_per_chip": (1, _TAKEN), "chips_per_host": (measured.devices, _COUNTED)}
    switch = {"interconnect": ("switch", _TAKEN), "pod": ((measured.devices,), _TAKEN), "links": (1, _TAKEN)}
    return {**counted, **switch, "link_efficiency": (1.0, _TAKEN), "hop_latency": (0.0, _TAKEN)}


def _memory(fitted: MachineFit) -> float:
    """Return the bytes/s that the fastest class of operations reaches on a device that works alone."""
    # Fitted seconds are those of a device among busy ones; times the oversubscription, it is one that works alone.
    rates = [_rate(line.per_byte, _moved(fitted, kind)) for kind, line in fitted.rooflines.items()]
    # On a machine so busy that nodes alone seem to take all the time, no fit has seconds of anything; then what the
    # best sample moved in all its seconds is a lower bound.
    fastest = max(rates, default=1e9) or max(
        _whole_rate(one) for kind in fitted.rooflines for one in fitted.measured.samples[kind]
    )
    return fitted.oversubscription * fastest


def _whole_rate(sample: Sample) -> float:
    """Return the bytes/s of a sample in all its seconds."""
    return (sample.work.read + sample.work.written) / sample.seconds


def _moved(fitted: MachineFit, kind: str) -> float:
    """Return the most bytes/s that a class moves in the time of its operations.

    It stands for the rate of bytes where these never decide: with a lower one, they would decide in the model.
    """
    # A class may carry a dtype ("matmul bfloat16"), which amounts of work have in a field of their own.
    amounts = [sample.work.of(kind.split()[0]) for sample in fitted.measured.samples[kind]]  # type: ignore[arg-type]
    per_flop = fitted.rooflines[kind].per_flop
    return max((one.read + one.written) / (one.flops * per_flop) for one in amounts) if per_flop else 0.0


def _network(fitted: MachineFit, memory: float) -> _Values:
    """Return the network between islands; as memory where there is only one island."""
    if not fitted.measured.island_to_island:
        alone = Origin("assumed", _NOT_MEASURED + "there is one island; as memory")
        return {"host_bw": (memory, alone), "rtt": (0.0, alone), "efficiency": (1.0, alone)}
    latency, byte = fitted.between
    whole = Origin("derived", "host_bw is what was reached")
    return {"host_bw": (_rate(byte, memory), MEASURED), "rtt": (2 * latency, MEASURED), "efficiency": (1.0, whole)}


def _rate(seconds: float, otherwise: float) -> float:
    """Return bytes/s; ``otherwise`` where bytes take no time that can be measured."""
    return 1 / seconds if seconds else otherwise


def _chip(fitted: MachineFit, memory: float, network: Network) -> _Values:
    """Return the values of the chip."""
    measured, (anyway, byte) = fitted.measured, fitted.from_host
    products = {
        field: (_products(fitted, kind), MEASURED) for kind, field in _PRODUCTS.items() if kind in fitted.rooflines
    }
    # The fastest collective sets the bandwidth of links, and the others reach a share of it.
    links = max(
        (fitted.oversubscription / one for kind, one in fitted.exchanges.items() if kind and one), default=memory
    )
    return {
        **_interconnect(measured),
        **products,
        "hbm_bytes": (measured.memory_bytes, _COUNTED),
        "hbm_bw": (memory, MEASURED),
        "link_bw": (links, MEASURED if fitted.exchanges else _TAKEN),
        "start_latency": (fitted.exchanges.get("", 0.0), MEASURED if fitted.exchanges else _TAKEN),
        "nic_bw": (network.host_bw, network.origin("host_bw")),
        "nic_rtt": (network.rtt, network.origin("rtt")),
        "pcie_bw": (_rate(byte * measured.devices / fitted.oversubscription, memory), MEASURED),
        "pcie_latency": (anyway, MEASURED),
    }


def _products(fitted: MachineFit, kind: str) -> float:
    """Return the FLOP/s of one device alone in matrix products; the best sample's where bytes decide throughout."""
    line, samples = fitted.rooflines[kind], fitted.measured.samples[kind]
    # Where bytes decide for all sizes, the fit has no seconds of operations; then the best sample is a lower bound.
    reached = max(sample.work.flops / sample.seconds for sample in samples)
    return fitted.oversubscription * (1 / line.per_flop if line.per_flop else reached)


def _host(fitted: MachineFit) -> _Values:
    """Return the values of the host."""
    one = Origin("assumed", "an island here has one host, which message counts")
    seconds: _Values = {name: (value, MEASURED) for name, value in fitted.host.items()}
    return {
        **seconds,
        "per_host": (0.0, one),
        # Divided, because the model multiplies a launch by the oversubscription, see ``CostModel``.
        "device_launch": (fitted.node_alone / fitted.oversubscription, MEASURED),
        # While all islands work, hosts and devices share cores, and a node takes longer by this.
        "interference": (fitted.node - fitted.node_alone, MEASURED),
    }


def _efficiency(fitted: MachineFit, chip: Chip) -> _Values:
    """Return the shares of the peaks that classes of operations and collectives reach."""
    # Classes that were not measured keep their usual share, and say so.
    usual = {name: Origin("assumed", _NOT_MEASURED + EFFICIENCY.origin(name).source) for name in _CLASSES}
    values: _Values = {name: (getattr(EFFICIENCY, name), origin) for name, origin in usual.items()}
    for kind, line in fitted.rooflines.items():
        values |= _share(kind, fitted.oversubscription, line.per_flop, line.per_byte, chip)
    values |= dict.fromkeys((kind.share for kind in KINDS), (1.0, _TAKEN))
    for kind, seconds in fitted.exchanges.items():
        if kind:  # "" is the time before any collective, which is a latency and no share
            reached = fitted.oversubscription / seconds / chip.link_bw if seconds else 1.0
            values[BY_NAME[kind].share] = min(1.0, reached), MEASURED
    # No kernel measures a broadcast.
    values["broadcast"] = values["all_gather"][0], Origin("assumed", _NOT_MEASURED + "as an all-gather")
    if fitted.measured.shared:  # virtual devices: so many of them have a core each
        values["at_once"] = (fitted.measured.devices / fitted.oversubscription, MEASURED)
    return values


_CLASSES = (
    "matmul", "conv", "matmul_bw", "conv_bw", "elementwise", "transcendental", "reduction", "movement", "sort",
    "random", "other",
)  # fmt: skip


def _share(kind: str, oversubscription: float, per_flop: float, per_byte: float, chip: Chip) -> _Values:
    """Return the share of the peaks that one class reaches, and its own FLOP/s where its operations decide.

    Args:
        kind: class of operations, for products with a dtype.
        oversubscription: how much longer a device takes while its island works.
        per_flop: fitted seconds of an operation; 0 where it never decides.
        per_byte: fitted seconds of a byte; 0 where it never decides.
        chip: whose peaks.
    """
    # A class that moves bytes slower than memory's rate reaches a share of it.
    reached = min(1.0, oversubscription / per_byte / chip.hbm_bw) if per_byte else 1.0
    bandwidth = (reached, MEASURED if per_byte else Origin("measured here", "its bytes never decide"))
    # The chip's peak is what products reached, so their share of it is 1; other dtypes have a peak of their own.
    if kind in _PRODUCTS:
        return {"matmul": (1.0, MEASURED), "matmul_bw": bandwidth} if kind == "matmul" else {}
    # Chips have no peak for convolutions: theirs is a share of that of products.
    if kind == "conv":
        peak = chip.fp32_flops or chip.flops("fp32")
        return {
            "conv": (min(1.0, oversubscription / per_flop / peak) if per_flop else 1.0, MEASURED),
            "conv_bw": bandwidth,
        }
    own = (
        {f"{kind}_flops": (oversubscription / per_flop, MEASURED)}
        if per_flop and f"{kind}_flops" in rules(Efficiency)
        else {}
    )
    return {kind: bandwidth, **own}
