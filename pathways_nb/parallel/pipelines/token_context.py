"""What a stage knows of the tokens before its slice: the keys and values of a causal layer (TeraPipe, section 3).

A causal layer needs, for the tokens of a slice, the keys and values of all tokens up to them. ``Context.append`` is all
that a stage writes for that; without token slices it returns what it was given. Keys and values lie in one buffer for
each array that is appended, as long as the whole sequence. Each slice adds its tokens to it in place, so that no slice
has a copy of the prefix. ``stored_context`` gives each append its buffer.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.interpreters import batching

from pathways_nb.errors import UsageError

APPEND = jex.Primitive("context_append")
"""Adds the tokens of a slice to a buffer that ``stored_context`` provides, and returns the buffer's first tokens.

Operands: an array (batch, l, …), and the slice's offset if it is traced. Parameters: ``offset``, ``width``, ``length``.
"""


@APPEND.def_abstract_eval
def _(array: Any, *_: Any, width: int, **__: Any) -> Any:
    # The buffer has a dtype of its own, so what comes out of it is never weakly typed.
    return array.update(shape=(array.shape[0], width, *array.shape[2:]), weak_type=False)


def _batching_rule(operands: Any, dimensions: Any, **params: Any) -> tuple[Any, int]:
    # Batch and tokens stay dimensions 0 and 1, which an append cuts and joins: the mapped one goes to the end.
    array = jnp.moveaxis(operands[0], dimensions[0], -1)
    return APPEND.bind(array, *operands[1:], **params), array.ndim - 1


batching.primitive_batchers[APPEND] = _batching_rule


class Context:
    """The tokens up to and including those of one slice.

    Args:
        offset: position of the slice's first token; a traced number if one executable serves all offsets.
        tokens: number of tokens of the slice, l.
        width: number of tokens that ``append`` returns: the tokens up to the end of the slice, or the whole sequence.
        length: number of tokens of the sequence, L.
    """

    def __init__(self, offset: Any, tokens: int, width: int, length: int):
        self.offset, self.tokens, self.width, self.length = offset, tokens, width, length

    @property
    def positions(self) -> Any:
        """Position of each token of the slice in its sequence, shape (l,)."""
        return self.offset + jnp.arange(self.tokens)

    @property
    def mask(self) -> Any:
        """Whether each token of the slice may read each token that ``append`` returns, shape (l, width)."""
        # With the whole store the width is L: rows that later slices will write are masked like all later tokens.
        return self.positions[:, None] >= jnp.arange(self.width)[None, :]

    def append(self, *arrays: Any) -> Any:
        """Add this slice's keys and values to those of the tokens before.

        Call it in the same order for every slice.

        Args:
            *arrays: such as keys and values, each of shape (batch, l, …).

        Returns:
            Each with the tokens from the first of the sequence on, shape (batch, width, …); ``mask`` says which of
            them each token may read.

        Raises:
            UsageError: the second dimension of an array is not the slice's number of tokens.
        """
        found = tuple(map(self._appended, arrays))
        return found if len(found) > 1 else found[0]

    def _appended(self, array: Any) -> Any:
        if array.ndim < 2 or array.shape[1] != self.tokens:
            raise UsageError(
                f"context.append got an array of shape {tuple(array.shape)}: its second dimension must be the "
                f"{self.tokens} tokens of the slice, as in (batch, tokens, heads, features)."
            )
        # Whole sequences get no operation, so a stage with a context costs them nothing.
        if self.tokens == self.length:
            return array
        params = {"width": self.width, "length": self.length}
        if isinstance(self.offset, int):
            return APPEND.bind(array, offset=self.offset, **params)
        # As an operand, so that one executable serves every offset; as a parameter, it fixes which tokens are read.
        return APPEND.bind(array, self.offset, offset=None, **params)


def _flatten(context: Context) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    known = isinstance(context.offset, int)
    sizes = context.tokens, context.width, context.length
    return (() if known else (context.offset,)), (context.offset if known else None, *sizes)


jax.tree_util.register_pytree_node(
    Context, _flatten, lambda static, traced: Context(traced[0] if traced else static[0], *static[1:])
)  # so that it may be an argument of ``jax.checkpoint`` and ``jax.jit``
