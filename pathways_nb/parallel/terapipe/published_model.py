"""Seconds of a slice on the machines of the TeraPipe paper: chips, network, shapes, and four fitted parameters.

A stage has ``layers / stages`` transformer layers, each shared by ``op`` GPUs of one host. A slice of ``b`` sequences
of ``l`` tokens after ``c`` tokens takes, forward and backward together,

    layers/stages · ( max(work, weights) + launches + 4 all-reduces over NVLink ) + 2 transfers between hosts.

Work is 72 b l h² + 12 b l (l + c) h operations a layer, at a fitted share of the chip's peak: the paper's attention
computes the masked half, too. Weights (12 h² values of 2 bytes) are read and written a fitted number of times however
short the slice is: in both passes, and where their gradients are summed. Launches take fitted seconds a layer. Between
hosts goes one copy of b l h values each way, at a fitted share of the host's NIC. Replicas (``data``) average their
gradients over the same NICs once in a step; the optimizer's own time is left out.

The fit cannot tell work from transfers, both of which grow with the tokens: its values are no measurements of either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from pathways_nb.cost.collectives.formulas import switch_all_reduce
from pathways_nb.cost.collectives.pricing import collective
from pathways_nb.cost.hardware.chips import chip
from pathways_nb.cost.hardware.networks import network
from pathways_nb.cost.hardware.topology import make_topology

CHIP, NETWORK = chip("gpu_v100_sxm2"), network("aws_p3_16xlarge")
BYTES = 2
"""Of a value in float16."""
_LARGE = 1e9
"""Bytes at which the latency and the bandwidth of the all-reduce within a host are read."""


class FittedParameters(NamedTuple):
    """What is fitted, for all settings together.

    Attributes:
        work_share: of the chip's peak in float16.
        weight_passes: number of times that a slice moves the weights through memory.
        launch: seconds of launches of a layer, forward and backward.
        nic_share: of the host's bandwidth to others.
    """

    work_share: float = 0.5
    weight_passes: float = 5.0
    launch: float = 1e-3
    nic_share: float = 0.5


Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""How seconds of work and of weights become one time: their maximum, or their sum."""


@dataclass(frozen=True)
class Setting:
    """One model on some GPUs, as the paper's tables name it.

    Args:
        layers: of the model.
        hidden: h, width of the model.
        length: L, tokens of a sequence.
        batch: B, sequences of one replica.
        data: number of replicas.
        stages: K, of the pipeline.
        op: GPUs that share each layer.
    """

    layers: int
    hidden: int
    length: int
    batch: int
    data: int
    stages: int
    op: int

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Setting:
        """Return the setting of an entry of the table of published results."""
        return cls(**{name: entry[name] for name in cls.__dataclass_fields__})

    @property
    def _layers_here(self) -> float:
        """Layers of one stage."""
        return self.layers / self.stages

    @cached_property
    def _all_reduce(self) -> tuple[float, float]:
        """Seconds of latency, and seconds a byte, of an all-reduce among the GPUs that share a layer."""
        if self.op == 1:
            return 0.0, 0.0
        host = make_topology(CHIP, CHIP.chips_per_host, network=NETWORK)
        # Read off at one large size: latency and time a byte are then a line for all slices.
        cost = collective("all_reduce", _LARGE, host, self.op)
        return cost.latency, cost.bandwidth / _LARGE

    def seconds(
        self, parameters: FittedParameters, combine: Combine = np.maximum
    ) -> Callable[[Any, Any, Any], np.ndarray]:
        """Return the seconds of a slice as a function of its sequences, tokens and context.

        Args:
            parameters: the fitted ones.
            combine: makes one time of the seconds of work and of weights.
        """
        h, peak = self.hidden, CHIP.flops("fp16") * self.op
        per_byte = CHIP.hbm_bw * self.op

        def slice_seconds(sequences: Any, tokens: Any, context: Any) -> np.ndarray:
            size = np.asarray(sequences * tokens, float)
            # Forward 24 b l h² for the products with weights and 4 b l (l + c) h for scores and their product with
            # values; backward twice as much.
            work = (72 * size * h**2 + 12 * size * (tokens + context) * h) / (peak * parameters.work_share)
            weights = np.asarray(12 * h**2 * BYTES * parameters.weight_passes / per_byte)
            latency, reduced = self._all_reduce
            # Four all-reduces: after attention and after the feed-forward part, in both passes (Megatron-LM).
            layer = combine(work, weights) + parameters.launch + 4 * (latency + reduced * size * h * BYTES)
            sent = size * h * BYTES / (NETWORK.host_bw_effective * parameters.nic_share)
            return self._layers_here * layer + 2 * (NETWORK.latency + sent)

        return slice_seconds

    def once(self, parameters: FittedParameters) -> float:
        """Return the seconds of averaging gradients among replicas; a host's GPUs share its NIC."""
        if self.data == 1:
            return 0.0
        # Those of one GPU: its stage's layers, of which it has one of ``op`` parts.
        gradients = 12 * self.hidden**2 * self._layers_here / self.op * BYTES
        # All GPUs of a host send at the same time.
        each = NETWORK.host_bw_effective * parameters.nic_share / CHIP.chips_per_host
        return switch_all_reduce(gradients, self.data, each, NETWORK.latency).seconds

    def uniform(self, parameters: FittedParameters, count: int = 1, combine: Combine = np.maximum) -> float:
        """Return the seconds of a step with each sequence alone in so many equal slices."""
        tokens = self.length // count
        return self.step([tokens] * count, parameters, combine)

    def step(self, tokens: Iterable[int], parameters: FittedParameters, combine: Combine = np.maximum) -> float:
        """Return the seconds of a step with each sequence alone in slices of these tokens."""
        lengths = np.array(list(tokens))
        each = self.seconds(parameters, combine)(1, lengths, np.cumsum(lengths) - lengths)
        return float(self.batch * each.sum() + (self.stages - 1) * each.max()) + self.once(parameters)
