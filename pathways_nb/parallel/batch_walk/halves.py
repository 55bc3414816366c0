"""Compares the loss of two halves of a batch with that of both together, where the structure does not decide.

Only what follows the first operation of which the walk cannot say how it depends on rows is compared: what comes before
it belongs to each row by itself, in a half as in the whole. That is computed once, for the whole batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh

from pathways_nb.jaxpr.flat import called
from pathways_nb.parallel.batch_walk.examine import PARAMETER
from pathways_nb.parallel.batch_walk.marks import FIXED, Kind, Mark, Reason
from pathways_nb.parallel.batch_walk.mean import counts_of, with_counts
from pathways_nb.parallel.batch_walk.operation import Axis
from pathways_nb.parallel.batch_walk.plain_jax import Lowered, begin, here, is_inexact, value_and_gradients
from pathways_nb.parallel.batch_walk.verdicts import Verdict, by_numbers
from pathways_nb.parallel.batch_walk.walk import UnlikeError, marks_inside
from pathways_nb.parallel.flat_function import FlatFunction, Runnable, reads

LossAndGradients = tuple[Any, list[Any]]


def of_halves(
    where: str, name: str, unknown: Reason | None, value: Callable[..., Any], params: Any, batch: tuple[Any, ...],
    parts: int, means: int,
) -> Callable[[], Verdict]:  # fmt: skip
    """Begin to compare the loss of two halves of a batch with that of both together, in plain JAX on the host.

    Each ``pw.mean`` of a half divides by half the sum of both counts, as in a step.

    Args:
        where: ``"fsdp"`` or ``"pipeline"``, for errors.
        name: of the loss.
        unknown: why the structure does not decide.
        value: ``value(params, *batch)`` returns the loss.
        params: the parameters.
        batch: the whole batch, on the host; scalars belong to both halves.
        parts: number of its parts, of which two are compared if it has no halves.
        means: number of the loss's calls of ``pw.mean``.

    Returns:
        What waits for the numbers and returns their verdict, or raises a ``UsageError`` if they differ.
    """
    params, batch = here((params, batch))
    count = next(leaf.shape[0] for leaf in jax.tree.leaves(batch) if jnp.ndim(leaf))
    half = count // 2 if count % 2 == 0 else count // parts

    def rows(first: int, last: int) -> Any:
        return jax.tree.map(lambda leaf: leaf[first * half : last * half] if jnp.ndim(leaf) else leaf, batch)

    calls = [(params, *rows(first, last)) for first, last in ((0, 1), (1, 2), (0, 2))]
    tail = None if means else _tail(value, calls[0], calls[2], half)
    if tail is not None:
        computed = begin(tail.of_all(calls[2], half))
    elif means:
        computed = begin(_with_means(where, value, calls, means))
    else:
        computed = begin(_of_all(value, calls))

    def conclude() -> Verdict:
        *of_parts, of_whole = computed.result()
        return by_numbers(where, name, "rows", unknown, of_parts, (0.5, 0.5), of_whole)

    return conclude


def _of_all(value: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Callable[[], list[LossAndGradients]]:
    """Return what computes the loss and the gradients by the parameters, of both halves and of the whole."""
    run = value_and_gradients(value)
    part, whole = Lowered(run, *calls[0]), Lowered(run, *calls[2])
    return lambda: [part(*calls[0]), part(*calls[1]), whole(*calls[2])]


def _with_means(
    where: str, value: Callable[..., Any], calls: Sequence[tuple[Any, ...]], means: int
) -> Callable[[], list[LossAndGradients]]:
    """Return what computes the same of a loss with calls of ``pw.mean``."""
    counting = Lowered(functools.partial(counts_of, where, value, 1), *calls[0])
    counts = [jax.ShapeDtypeStruct((), jnp.float32)] * means
    part = Lowered(value_and_gradients(with_counts(value)), *calls[0], counts)
    whole = Lowered(value_and_gradients(value), *calls[2])

    def compute() -> list[LossAndGradients]:
        halved = [
            (one + other) / np.float32(2) for one, other in zip(*(counting(*call) for call in calls[:2]), strict=True)
        ]
        return [part(*calls[0], halved), part(*calls[1], halved), whole(*calls[2])]

    return compute


@dataclass(frozen=True)
class _Tail:
    """The part of a loss that is compared, as functions of lists of arrays.

    Args:
        head: returns what the tail reads, from all leaves of the loss's arguments.
        of_half: returns the loss of a half.
        of_whole: returns that of the whole.
        shapes: of what it reads, in a half and in the whole.
        rows: of each value that it reads, the dimension of the rows; ``None`` if it has none.
        varied: positions of those by which the loss is differentiated.
    """

    head: Callable[..., list[Any]]
    of_half: Callable[..., list[Any]]
    of_whole: Callable[..., list[Any]]
    shapes: tuple[Sequence[Any], Sequence[Any]]
    rows: Sequence[int | None]
    varied: Sequence[int]

    def of_all(self, arguments: Any, half: int) -> Callable[[], list[LossAndGradients]]:
        """Return what computes the loss and the gradients by what the tail reads, of both halves and of the whole."""
        leaves = jax.tree.leaves(arguments)
        head = Lowered(self.head, *leaves)
        part, whole = (
            Lowered(self._differentiated(run), [shapes[at] for at in self.varied], list(shapes))
            for run, shapes in zip((self.of_half, self.of_whole), self.shapes, strict=True)
        )

        def compute() -> list[LossAndGradients]:
            read = head(*leaves)
            found = []
            for run, start, count in ((part, 0, half), (part, half, half), (whole, 0, 2 * half)):
                given = [_cut(leaf, at, start, count) for leaf, at in zip(read, self.rows, strict=True)]
                value, gradients = run([given[at] for at in self.varied], given)
                pairs = zip(gradients, (self.rows[at] for at in self.varied), strict=True)
                found.append((value, [_per_row(leaf, at, start, 2 * half) for leaf, at in pairs]))
            return found

        return compute

    def _differentiated(self, run: Callable[..., list[Any]]) -> Callable[..., LossAndGradients]:
        def value(varied: Sequence[Any], read: Sequence[Any]) -> Any:
            new = dict(zip(self.varied, varied, strict=True))
            return run(*(new.get(at, leaf) for at, leaf in enumerate(read)))[0]

        return value_and_gradients(value)


def _cut(leaf: Any, at: int | None, start: int, count: int) -> Any:
    return leaf if at is None else leaf[(slice(None),) * at + (slice(start, start + count),)]


def _per_row(leaf: Any, at: int | None, start: int, count: int) -> Any:
    """Return the gradient by what belongs to rows, times their number, where it stands in the whole: zero elsewhere."""
    if at is None:
        return leaf
    before, after = [(0, 0)] * leaf.ndim, count - start - leaf.shape[at]
    before[at] = (start, after)
    return np.pad(leaf * np.asarray(count, leaf.dtype), before)


def _tail(value: Callable[..., Any], of_half: Any, of_whole: Any, half: int) -> _Tail | None:
    """Return the part of a loss that is to be compared; ``None`` if that is all of it, or cannot be told apart."""
    if half < 2:  # a dimension of one row could be any
        return None
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        one, two = (_unwrapped(jax.make_jaxpr(value)(*given)) for given in (of_half, of_whole))
    marks = [PARAMETER] * len(jax.tree.leaves(of_half[0]))
    marks += [Mark(Kind.ROWS, at=0) if jnp.ndim(leaf) else FIXED for leaf in jax.tree.leaves(of_half[1:])]
    try:
        env = marks_inside(Axis("rows", (half, 2 * half)), one, two, marks)
    except UnlikeError:
        return None
    small, large = FlatFunction.of(one), FlatFunction.of(two)
    marked = dict(zip(small.inputs, marks, strict=True))
    for op in small.ops:
        marked.update((value, env.get(var, FIXED)) for value, var in zip(op.results, op.eqn.outvars, strict=True))
    first, second = (_after(flat.ops, marked) for flat in (small, large))
    read = [number for number in reads(first) if number not in small.constants]
    if read != [number for number in reads(second) if number not in large.constants]:
        return None
    rows = [_rows(marked[number], small.avals[number], large.avals[number], half) for number in read]
    if not first or "no" in rows or set(read) <= set(small.inputs):
        return None
    trained = _differentiable(small.ops, small.inputs[: len(jax.tree.leaves(of_half[0]))])
    return _Tail(
        large.function(large.ops, large.inputs, read),
        small.function(first, read, small.outputs),
        large.function(second, read, large.outputs),
        (_shapes(small, read), _shapes(large, read)),
        [at if isinstance(at, int) else None for at in rows],
        [at for at, number in enumerate(read) if number in trained and is_inexact(small.avals[number])],
    )


def _shapes(flat: FlatFunction, values: Sequence[int]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(flat.avals[value].shape, flat.avals[value].dtype) for value in values]


def _after(ops: Sequence[Runnable], marked: dict[int, Mark]) -> list[Runnable]:
    """Return the operations from the first on whose outputs are unknown, and what depends on them."""
    made, found = set[int](), list[Runnable]()
    for op in ops:
        if not made.isdisjoint(op.inputs) or any(marked[value].is_lost for value in op.results):
            made.update(op.results)
            found.append(op)
    return found


def _differentiable(ops: Sequence[Runnable], params: Sequence[int]) -> set[int]:
    """Return the values through which gradients by the parameters flow."""
    found = set(params)
    for op in ops:
        if op.name != "stop_gradient" and not found.isdisjoint(op.inputs):
            found.update(op.results)
    return found


def _rows(mark: Mark, small: Any, large: Any, half: int) -> int | str | None:
    """Return the dimension along which a value of the whole is cut into those of halves, or ``"no"``."""
    plain = mark.power == 0 and not mark.counts
    if plain and mark.kind == Kind.FIXED and small.shape == large.shape:
        return None
    at = mark.at
    if plain and mark.kind == Kind.ROWS and at is not None and mark.inner == 1 and not mark.shared:
        expected = (*small.shape[:at], 2 * half, *small.shape[at + 1 :])
        if small.shape[at] == half and large.shape == expected:
            return at
    return "no"


def _unwrapped(closed: Any) -> Any:
    """Return the jaxpr inside one that does nothing but call it, such as that of a jitted loss."""
    jaxpr = closed.jaxpr
    if len(jaxpr.eqns) == 1 and jaxpr.eqns[0].primitive.name == "jit" and not closed.consts:
        (eqn,) = jaxpr.eqns
        if list(eqn.invars) == list(jaxpr.invars) and list(eqn.outvars) == list(jaxpr.outvars):
            return _unwrapped(called(eqn))
    return closed
