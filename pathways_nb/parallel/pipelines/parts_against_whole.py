"""Compares token slices with whole sequences, where the structure of a pipeline does not decide.

Loss and gradients of both are computed in plain JAX on the host, once, from two rows of the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from pathways_nb.parallel.batch_walk.mean import counts_of, with_counts
from pathways_nb.parallel.batch_walk.plain_jax import Lowered, begin, here, value_and_gradients
from pathways_nb.parallel.batch_walk.verdicts import Verdict, by_numbers
from pathways_nb.parallel.pipelines.stage_parts import TokenSlice
from pathways_nb.parallel.pipelines.stored_context import with_store
from pathways_nb.parallel.pipelines.token_context import Context


class Model(NamedTuple):
    """A model in plain JAX.

    Args:
        calls: the stages, as ``call(params, x, key, context)``.
        loss: returns the loss and auxiliary outputs.
        name: of the loss.
        length: tokens of the sequences.
        means: number of the loss's calls of ``pw.mean``.
    """

    calls: Sequence[Callable[..., Any]]
    loss: Callable[..., tuple[Any, Any]]
    name: str
    length: int
    means: int

    def whole(self, params: Any, x: Any, targets: Any) -> Any:
        """Return the loss of whole sequences."""
        for call, own in zip(self.calls, params, strict=True):
            x = call(own, x, None, Context(0, self.length, self.length, self.length))
        return self.loss(x, targets)[0]

    def slices(
        self, verdict: Verdict, params: Any, x: Any, targets: Any, slices: Sequence[TokenSlice], cut: Callable[..., Any]
    ) -> Callable[[], Verdict]:
        """Begin to compare the token slices of some rows with whole sequences.

        Args:
            verdict: that the structure did not reach.
            params: of each stage.
            x: the input.
            targets: what the loss compares with.
            slices: the token slices.
            cut: ``cut((x, targets), slice)`` returns those of a slice.

        Returns:
            What waits for the numbers and returns their verdict, or raises a ``UsageError`` if they differ.
        """

        def sliced(params: Any, x: Any, targets: Any) -> Any:
            stores: list[Any] = [None] * len(self.calls)
            losses = []
            counts = counts_of("pipeline", self.whole, 1, params, x, targets) if self.means else []
            for at in slices:
                y, wanted = cut((x, targets), at)
                for stage, call in enumerate(self.calls):
                    context = Context(at.offset, at.tokens, at.offset + at.tokens, at.length)
                    # Defaults, because the loop changes both names before the function is called.
                    run = lambda own, y, call=call, context=context: call(own, y, None, context)  # noqa: E731
                    y, stores[stage], _ = with_store(run, (params[stage], y), stores[stage])
                share = at.tokens / at.length
                losses.append(with_counts(self.loss)(y, wanted, [count * share for count in counts])[0] * share)
            return sum(losses)

        # Two rows are enough to compare slices: microbatches are compared elsewhere, with the whole batch.
        given = here((params, *jax.tree.map(lambda leaf: leaf[:2], (x, targets))))
        both = [Lowered(value_and_gradients(run), *given) for run in (self.whole, sliced)]
        # Traced here, under the caller's contexts of JAX; compiled and run in another thread, while the step compiles.
        computed = begin(lambda: [run(*given) for run in both])

        def conclude() -> Verdict:
            whole, (value, together) = computed.result()
            hint = "; usual: a mask or positions of the slice's own, a shift of the targets, a sum over tokens"
            return by_numbers("pipeline", self.name, "tokens", verdict.unknown, [float(value)], together, whole, hint)

        return conclude
