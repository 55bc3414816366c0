"""Says whether a loss is a mean over what is split, and what nobody could decide."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np

from pathways_nb.errors import UsageError
from pathways_nb.parallel.batch_walk.equation_pair import WalkedAxis
from pathways_nb.parallel.batch_walk.marks import Kind, Mark, Reason, level
from pathways_nb.program.signature import Deferred

By = Literal["structure", "numbers", "one part", "left out", "nobody"]
_WORDS: dict[By, str] = {
    "structure": "checked by structure: the loss is a mean over what is split",
    "numbers": "checked by numbers, once",
    "one part": "not checked: the batch is in one part, so every loss is right",
    "left out": "not checked: check=False",
    "nobody": "not checked",
}


@dataclass(frozen=True)
class Verdict:
    """What is known of a loss along what is split.

    Args:
        by: what decided that it is a mean.
        unknown: why its structure does not decide; ``None`` if it does.
    """

    by: By
    unknown: Reason | None = None

    def __str__(self) -> str:
        return _WORDS[self.by] if self.unknown is None else f"{_WORDS[self.by]}, because {self.unknown}"


ONE_PART = Verdict("one part")
LEFT_OUT = Verdict("left out")


def of_loss(where: str, name: str, mark: Mark, axis: WalkedAxis) -> Verdict:
    """Return what the structure of a loss says.

    Args:
        where: ``"fsdp"`` or ``"pipeline"``, for errors.
        name: of the loss.
        mark: of its value.
        axis: what is split.

    Raises:
        UsageError: it is no mean over what is split, with the line and the way out.
    """
    if mark.kind == Kind.UNKNOWN:
        return Verdict("nobody", mark.reason)
    if mark.reason is not None and mark.reason.repeats:
        raise _repeats(where, name, axis.name, mark.reason)
    if mark.kind == Kind.MIXED:
        raise refused(where, name, axis.name, str(mark.reason))
    if mark.is_mean:
        return Verdict("structure")
    # A scalar cannot have rows, unless it belongs to one of them in a way that is not understood.
    if mark.counts or mark.kind == Kind.ROWS:
        return Verdict("nobody", Reason(f"it counts {axis.name}"))
    if level(mark) == 1:
        doubles = f"it is a sum over {axis.name}, which doubles with their number; use jnp.mean"
        raise refused(where, name, axis.name, doubles)
    raise refused(where, name, axis.name, f"it depends on the number of {axis.name} in another way than a mean")


def refused(where: str, name: str, over: str, why: str) -> UsageError:
    """Return the error of a loss that is no mean, with the ways out."""
    batch = "batch" if over == "rows" else "sequences"
    if over == "tokens":
        return UsageError(
            f"{where}: token slices change the loss {name}: {why}. A stage sees the tokens before its slice only "
            f"through context.append(…), masked by context.mask and placed by context.positions; an input that is not "
            f"sliced, such as the memory of cross-attention, is named by unsliced=. The loss must be a mean over "
            f"tokens without shifts (shift the targets before the call); over a mask it is pw.mean(total, count). If "
            f"you know better: check=False."
        )
    return UsageError(
        f"{where}: {name} is no mean over the {over} of the {batch}: {why}. Each part of the {batch} has its own, and "
        f"their mean is not that of the whole. A mean over what a mask leaves is pw.mean(total, count), "
        f"with the plain count: a part that counts nothing is right. Else make each "
        f"{over[:-1]} count by itself, or do not split. If you know better: check=False."
    )


def _repeats(where: str, name: str, over: str, reason: Reason) -> UsageError:
    """Return the error of a loss whose parts all draw the same random numbers."""
    part = "token slice" if over == "tokens" else "part of the batch"
    way = (
        "Give it in the batch, as loss(params, x, key) and step(params, state, x, jax.random.key(0)): each device and "
        "microbatch then draws its own"
        if where == "fsdp"
        else "Draw in a stage with a parameter 'key', stage(params, x, key), and call "
        "value_and_grad(params, x, targets, jax.random.key(0)): each microbatch and token slice then draws its own"
    )
    return UsageError(
        f"{where}: every {part} draws the same random numbers for {name}, because their key is closed over: {reason}. "
        f"{way}. If you know better: check=False."
    )


def by_numbers(
    where: str, name: str, over: str, unknown: Reason | None, values: Sequence[float], together: Sequence[Any],
    whole: Any, hint: str = "",
) -> Verdict:  # fmt: skip
    """Compare the loss and the gradients of equal parts with those of all of them together.

    Args:
        where: ``"fsdp"`` or ``"pipeline"``, for errors.
        name: of the loss.
        over: ``"rows"`` or ``"tokens"``.
        unknown: why the structure does not decide.
        values: the loss of each part.
        together: the gradients of all parts together.
        whole: the loss and the gradients of the whole.
        hint: what to look for, added to the error.

    Returns:
        The verdict that numbers reached.

    Raises:
        UsageError: they differ, with both values.
    """
    expected, exact = whole
    # With 16-bit numbers, sums of parts and of the whole differ by their rounding.
    coarse = any(leaf.dtype.itemsize < _FLOAT32 for leaf in (expected, *exact))
    tolerance = _COARSE if coarse else _FINE
    if not np.isfinite(np.asarray(expected, np.float32)):
        return Verdict("nobody", Reason(f"{unknown}, and the first loss is {expected}"))
    mean = sum(values) / len(values)
    if not abs(mean - float(expected)) <= tolerance * max(abs(float(expected)), *map(abs, values), 1e-3):
        why = f"it is {float(expected):.6g} of the whole and {mean:.6g} of its parts together; {unknown}{hint}"
        raise refused(where, name, over, why)
    # The loss may be right by chance, and its gradients wrong: those with a rule of the user's, for example.
    pairs = [(np.asarray(parts, np.float64), np.asarray(right, np.float64))
             for parts, right in zip(together, exact, strict=True)]  # fmt: skip
    sizes = [float(np.abs(right).max(initial=0)) for _, right in pairs]
    least = max([*sizes, 1e-6]) * (1 if coarse else _SMALL)
    for (parts, right), size in zip(pairs, sizes, strict=True):
        apart = float(np.abs(parts - right).max(initial=0))
        if not apart <= 10 * tolerance * max(size, least):
            why = f"gradients of its parts together differ by {apart:.2g} from those of the whole, the largest of which"
            raise refused(where, name, over, f"{why} is {size:.2g}; {unknown}{hint}")
    return Verdict("numbers", unknown)


_SMALL = 1e-2
"""Share of the largest gradient to which smaller ones are compared, because what is left of them may be rounding."""
_FLOAT32, _FINE, _COARSE = 4, 1e-4, 2e-2
"""Bytes of a float32, and the relative differences that rounding explains, of it and of shorter ones."""


def on_host(tree: Any) -> Any:
    """Return the values of a tree of futures and arrays, on the host; random keys stay as they are."""
    return jax.tree.map(lambda leaf: leaf.result() if isinstance(leaf, Deferred) else leaf, tree)


def drawn(verdict: Verdict) -> Verdict:
    """Return the verdict on a loss that draws random numbers, which are others in each part."""
    return Verdict("nobody", Reason(f"{verdict.unknown}, and it draws other random numbers in each part"))


def warn_undecided(where: str, name: str, verdict: Verdict) -> None:
    """Warn that nothing decided whether a loss is a mean over what is split."""
    warnings.warn(
        f"{where}: whether {name} is a mean over what is split was {verdict}. If it is not, the loss of the parts is "
        f"another than that of the whole batch.", RuntimeWarning, stacklevel=4,
    )  # fmt: skip
