"""Data parallelism over two islands of one core each: throughput over one, and the share of the exchange hidden.

Llama blocks train on twice the batch on two islands, which exchange their gradients in every step with
``pw.all_reduce``, and on the batch itself on one of these islands (Pathways, Figure 12: about 97 % of the throughput of
one island of the same number of devices). Beside it are two islands that exchange nothing, which is what this machine's
cores allow, and plain JAX on one device with all cores. All take turns, so that they see the same machine.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import optax

import pathways_nb as pw
from pathways_nb.bench.stopwatch import interleaved, ratio, spread
from pathways_nb.examples import data_parallel, llama

BLOCKS, ROWS, TOKENS, ROUNDS = 6, 8, 128, 8
"""Blocks of the model, sequences and tokens of one island's batch, and timed steps."""
BUCKET_MB = 4.0
"""Size of a bucket: about that of a block's gradients."""
TWO, ONE, APART = "two islands, twice the batch", "one island", "two islands without exchange"
PLAIN = "plain JAX, one device, all cores, twice the batch"
_adam = optax.adamw(1e-3)


def run() -> dict[str, Any]:
    """Return the throughput of two islands over one, and the share of the exchange that lies under computation."""
    with pw.attach("cpu", islands=2, devices_per_island=1):
        islands = [pw.virtual_slice(1, island=island) for island in range(2)]
        two, one, apart = Trainer(islands), Trainer(islands[:1]), [Trainer([place]) for place in islands]
        steps: dict[str, Callable[[], object]] = {
            TWO: two.step,
            ONE: one.step,
            APART: lambda: pw.wait([trainer.send() for trainer in apart]),
            PLAIN: _plain(),
        }
        interleaved(steps, 2)  # compile
        two.exchanges.clear()
        seconds = interleaved(steps, ROUNDS)
    shares = [exchange.hidden_share for exchange in two.exchanges]
    figures = {
        "exchange_hidden_share": median(shares),
        "two_islands_over_one": throughput(seconds, TWO, ONE),
        "two_islands_without_exchange_over_one": throughput(seconds, APART, ONE),
        "two_islands_over_no_exchange": ratio(seconds, APART, TWO),
        "two_islands_over_plain_jax_all_cores": median(seconds[PLAIN]) / median(seconds[TWO]),
    }
    note = (
        "Throughput counts sequences: two islands train on twice as many in a step. The cores of the machine bound it."
    )
    detail = {
        "seconds": {name: spread(times) for name, times in seconds.items()},
        "hidden shares": spread(shares),
        "exchange seconds": spread([exchange.seconds for exchange in two.exchanges]),
        "note": note,
    }
    return {"figures": figures, "detail": detail}


class Trainer:
    """A training step on some places, and where it stands.

    Args:
        places: one on each island; each trains on ``ROWS`` sequences.
    """

    def __init__(self, places: list[pw.VirtualSlice]):
        _, params = llama.stages([1] * BLOCKS)
        self.program = data_parallel.training_step(places, _adam, BUCKET_MB)
        batch = llama.batch(ROWS * len(places), TOKENS)
        self.params, self.states, self.batches = data_parallel.start(places, _adam, params, *batch)
        self.exchanges: list[Any] = []

    def step(self) -> None:
        """Run one step and note its exchange."""
        run = self.program.run(self.params, self.states, self.batches)
        self.params, self.states, _ = run.outputs
        self.exchanges.append(run.exchange())

    def send(self) -> Any:
        """Dispatch one step and return its parameters."""
        self.params, self.states, _ = self.program(self.params, self.states, self.batches)
        return self.params


def _plain() -> Callable[[], None]:
    """Return a step of plain JAX on the batch of both islands."""
    _, params = llama.stages([1] * BLOCKS)
    batch = llama.batch(2 * ROWS, TOKENS)

    @jax.jit
    def change(params: Any, state: Any, tokens: Any, targets: Any) -> tuple[Any, Any]:
        _, gradients = jax.value_and_grad(data_parallel.whole_loss)(params, tokens, targets)
        updates, state = _adam.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    state = _adam.init(params)

    def step() -> None:
        nonlocal params, state
        params, state = jax.block_until_ready(change(params, state, *batch))

    return step


def throughput(seconds: dict[str, list[float]], double: str, single: str) -> float:
    """Return the sequences per second of a contender with twice the batch over another's, the median of rounds."""
    return median(2 * one / two for two, one in zip(seconds[double], seconds[single], strict=True))
