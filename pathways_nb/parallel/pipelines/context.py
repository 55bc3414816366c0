"""What a stage knows of the tokens before its slice: the keys and values of a causal layer (TeraPipe, section 3).

A causal layer needs, for the tokens of a slice, the keys and values of all tokens up to them. ``Context.append`` is all
that a stage writes for that; without token slices it returns what it was given. Keys and values lie in one buffer for
each array that is appended, as long as the whole sequence. Each slice adds its tokens to it in place, so that no slice
has a copy of the prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pathways_nb.errors import UsageError


class Context:
    """The tokens up to and including those of one slice.

    Args:
        offset: position of the slice's first token; a traced number if one executable serves all offsets.
        tokens: number of tokens of the slice, l.
        width: number of tokens that ``append`` returns: the tokens up to the end of the slice, or the whole sequence.
        length: number of tokens of the sequence, L.
        store: a buffer for each array that is appended, (B, L, …); ``None`` at the first slice, whose buffers are new.
    """

    def __init__(self, offset: Any, tokens: int, width: int, length: int, store: Sequence[Any] | None):
        self.offset, self.tokens, self.width, self.length = offset, tokens, width, length
        self.store: list[Any] = [] if store is None else list(store)
        self._first, self._next = store is None, 0

    @property
    def positions(self) -> Any:
        """Position of each token of the slice in its sequence, shape (l,)."""
        return self.offset + jnp.arange(self.tokens)

    @property
    def mask(self) -> Any:
        """Whether each token of the slice may read each token that ``append`` returns, shape (l, width)."""
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
        if self.tokens == self.length:
            return array
        if self._first:
            self.store.append(jnp.zeros((array.shape[0], self.length, *array.shape[2:]), array.dtype))
        start = (0, self.offset, *[0] * (array.ndim - 2))
        buffer = jax.lax.dynamic_update_slice(self.store[self._next], array, start)
        self.store[self._next] = buffer
        self._next += 1
        return buffer[:, : self.width]
