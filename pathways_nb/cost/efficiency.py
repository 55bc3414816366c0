"""Shares of a chip's peaks that classes of operations reach, and of the links' bandwidth that collectives reach.

One share for each class of ``node_work.Amount``: one set for all of them would be wrong by a factor of three
(measured). ``EFFICIENCY`` has assumed values for chips that were not measured; a calibration replaces them. They say
"assumed" in every table, so that no simulated time looks better founded than it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from pathways_nb.cost.collectives.kinds import KINDS
from pathways_nb.cost.hardware.parameters import Origin, Parameters, fraction, optional_rate


@dataclass(frozen=True, repr=False, kw_only=True)
class Efficiency(Parameters):
    """Shares of a chip's peaks, above 0 and at most 1.

    Attributes:
        matmul: of its FLOP/s, for matrix products.
        conv: of its FLOP/s, for convolutions.
        matmul_bw: of its memory's bandwidth, for matrix products.
        conv_bw: of its memory's bandwidth, for convolutions.
        elementwise: of its memory's bandwidth, for elementwise operations other than the next.
        transcendental: the same for exp, tanh, sqrt and the like.
        reduction: the same for reductions, such as sums.
        movement: the same for gather, scatter, transpose, copy, slice.
        sort: the same for sorts.
        random: the same for random bits.
        other: the same for operations whose arithmetic is not counted.
        elementwise_flops: FLOP/s of one device in elementwise operations; None where only their bytes count.
        transcendental_flops: the same for exp, tanh, sqrt and the like.
        reduction_flops: the same for reductions.
        sort_flops: the same for sorts.
        random_flops: the same for random bits.
        all_reduce: of the bandwidth of links and NICs, for all-reduces.
        all_gather: the same for all-gathers.
        reduce_scatter: the same for reduce-scatters.
        all_to_all: the same for all-to-alls.
        permute: the same for permutes, and for transfers over links.
        broadcast: the same for broadcasts.
        at_once: number of devices of one node that run at full speed at the same time, for virtual CPU devices, which
            share cores; None for all of them.
    """

    matmul: float = fraction()
    conv: float = fraction()
    matmul_bw: float = fraction()
    conv_bw: float = fraction()
    elementwise: float = fraction()
    transcendental: float = fraction()
    reduction: float = fraction()
    movement: float = fraction()
    sort: float = fraction()
    random: float = fraction()
    other: float = fraction()
    elementwise_flops: float | None = optional_rate("FLOP/s")
    transcendental_flops: float | None = optional_rate("FLOP/s")
    reduction_flops: float | None = optional_rate("FLOP/s")
    sort_flops: float | None = optional_rate("FLOP/s")
    random_flops: float | None = optional_rate("FLOP/s")
    all_reduce: float = fraction(1.0)
    all_gather: float = fraction(1.0)
    reduce_scatter: float = fraction(1.0)
    all_to_all: float = fraction(1.0)
    permute: float = fraction(1.0)
    broadcast: float = fraction(1.0)
    # A rate rather than a count: what is fitted need not be a whole number.
    at_once: float | None = optional_rate("devices")

    def bandwidth(self, kind: str) -> float:
        """Return the share of the memory's bandwidth that a class of operations reaches."""
        # Products and convolutions have two shares, of FLOP/s and of bytes; other classes are mostly bound by bytes.
        return getattr(self, f"{kind}_bw" if kind in ("matmul", "conv") else kind)

    def oversubscription(self, devices: int) -> float:
        """Return how many times longer each device takes when so many work: 1 unless they share cores."""
        return max(1.0, devices / self.at_once) if self.at_once else 1.0


_ASSUMED: dict[str, tuple[float, str]] = {
    "matmul": (0.7, "large products reach 60 to 80 % of the data sheet's rate"),
    "conv": (0.6, "a little less than products of matrices"),
    "matmul_bw": (0.8, "as a stream of memory"),
    "conv_bw": (0.8, "as a stream of memory"),
    "elementwise": (0.85, "a stream of memory reaches 80 to 90 % of the data sheet's bandwidth"),
    "transcendental": (0.85, "as other elementwise operations"),
    "reduction": (0.8, "nearly as a stream of memory"),
    "movement": (0.6, "transpositions and look-ups do not stream"),
    "sort": (0.05, "many passes over the data"),
    "random": (0.5, "bits are computed, not only written"),
    "other": (0.3, "operations whose arithmetic is not counted"),
}
# 1, or the loss of links would count twice: a chip's ``link_efficiency`` has it already.
_WHOLE = Origin("assumed", "what the chip's link_efficiency leaves of its links")
EFFICIENCY = Efficiency(
    base="usual shares",
    origins=MappingProxyType(
        {name: Origin("assumed", source) for name, (_, source) in _ASSUMED.items()}
        | dict.fromkeys((kind.share for kind in KINDS), _WHOLE)
    ),
    **{name: share for name, (share, _) in _ASSUMED.items()},  # type: ignore[arg-type]
)
"""The shares where nothing was measured."""
