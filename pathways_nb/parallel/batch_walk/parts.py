"""Compares the loss of the parts of a batch with that of all of it, where the structure does not decide.

The parts are those of the step, because a loss may be another for parts of another size, such as one whose experts have
a capacity. Only what follows the first operation of which the walk cannot say how it depends on rows is compared: what
comes before it belongs to each row by itself, in a part as in the whole. That is computed once, for the whole batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh

from pathways_nb.jaxpr.flat import called
from pathways_nb.parallel.batch_walk.equation_pair import WalkedAxis
from pathways_nb.parallel.batch_walk.examine import PARAMETER
from pathways_nb.parallel.batch_walk.marks import FIXED, Kind, Mark, Reason
from pathways_nb.parallel.batch_walk.mean import counts_of, with_counts
from pathways_nb.parallel.batch_walk.plain_jax import Lowered, begin, here, is_inexact, value_and_gradients
from pathways_nb.parallel.batch_walk.verdicts import Verdict, by_numbers
from pathways_nb.parallel.batch_walk.walk import UnlikeError, marks_inside
from pathways_nb.parallel.flat_function import FlatFunction, Runnable, reads

LossAndGradients = tuple[Any, list[Any]]
Places = Sequence[int | None]
Calls = Sequence[tuple[Any, ...]]


def of_parts(
    where: str, name: str, unknown: Reason | None, value: Callable[..., Any], params: Any, batch: tuple[Any, ...],
    parts: int, means: int, traces: tuple[Any, Any] | None = None,
) -> Callable[[], Verdict]:  # fmt: skip
    """Begin to compare the loss of the parts of a batch with that of all of them together, in plain JAX on the host.

    Each ``pw.mean`` of a part divides by the mean of the counts of all, as in a step.

    Args:
        where: ``"fsdp"`` or ``"pipeline"``, for errors.
        name: of the loss.
        unknown: why the structure does not decide.
        value: ``value(params, *batch)`` returns the loss.
        params: the parameters.
        batch: the whole batch, on the host; scalars belong to every part.
        parts: number of its parts, which divides the number of rows.
        means: number of the loss's calls of ``pw.mean``.
        traces: jaxprs of a part and of the whole, which are made here otherwise; the first output is the loss.

    Returns:
        What waits for the numbers and returns their verdict, or raises a ``UsageError`` if they differ.
    """
    # On this host's processor: the devices of the step may be many, and are busy.
    params, batch = here((params, batch))
    size = next(leaf.shape[0] for leaf in jax.tree.leaves(batch) if jnp.ndim(leaf)) // parts

    def rows(start: int, count: int) -> tuple[Any, ...]:
        return jax.tree.map(lambda leaf: leaf[start : start + count] if jnp.ndim(leaf) else leaf, batch)

    calls, whole = [(params, *rows(at * size, size)) for at in range(parts)], (params, *batch)
    # A pw.mean needs counts of all parts before any part is computed, so its loss is not cut.
    tail = None if means else _tail(value, calls[0], whole, (size, parts * size), traces)
    if tail is not None:
        computed = begin(tail.of_all(whole, (size, parts * size)))
    elif means:
        computed = begin(_with_means(where, value, calls, whole, means))
    else:
        of_part = Lowered(value_and_gradients(value, parts), *calls[0])
        of_whole = Lowered(value_and_gradients(value), *whole)
        computed = begin(lambda: _summed((of_part(*call) for call in calls), of_whole(*whole)))

    def conclude() -> Verdict:
        try:
            values, together, exact = computed.result()
        except jax.errors.JaxRuntimeError as error:  # of a callback, or of memory; the step itself may say more
            why = str(error).strip().splitlines()[-1][:160]
            return Verdict("nobody", Reason(f"{unknown}, and comparing its parts on this host failed: {why}"))
        return by_numbers(where, name, "rows", unknown, values, together, exact)

    return conclude


Compared = tuple[list[float], list[np.ndarray], LossAndGradients]
"""The loss of each part, the gradients of all parts together, and loss and gradients of the whole."""


def _summed(parts: Iterable[LossAndGradients], exact: LossAndGradients, places: Places | None = None) -> Compared:
    """Add up the gradients of parts, one part after the other.

    Args:
        parts: their losses and gradients, each over their number, in order.
        exact: those of the whole.
        places: of each gradient, the dimension of the rows, along which those of parts follow each other; ``None`` of a
            gradient that has none.

    Returns:
        What is to be compared.
    """
    places = places or [None] * len(exact[1])
    # In float64: rounding of this sum would otherwise count as a difference.
    values, sums = list[float](), [np.zeros(leaf.shape, np.float64) for leaf in exact[1]]
    for number, (value, gradients) in enumerate(parts):
        values.append(float(value))
        for total, leaf, at in zip(sums, gradients, places, strict=True):
            count = 0 if at is None else leaf.shape[at]
            total[_span(at, number * count, count)] += np.asarray(leaf, np.float64)
    # Each part's loss is divided by the number of parts (``value_and_gradients``); its own value is wanted.
    return [value * len(values) for value in values], sums, exact


def _with_means(
    where: str, value: Callable[..., Any], calls: Calls, whole: tuple[Any, ...], means: int
) -> Callable[[], Compared]:
    """Return what computes loss and gradients, of all parts and of the whole, of a loss with calls of ``pw.mean``."""
    counting = Lowered(functools.partial(counts_of, where, value, 1), *calls[0])
    counts = [jax.ShapeDtypeStruct((), jnp.float32)] * means
    of_part = Lowered(value_and_gradients(with_counts(value), len(calls)), *calls[0], counts)
    of_whole = Lowered(value_and_gradients(value), *whole)

    def compute() -> Compared:
        counted = zip(*(counting(*call) for call in calls), strict=True)
        shares = [np.float32(sum(each) / len(calls)) for each in counted]
        return _summed((of_part(*call, shares) for call in calls), of_whole(*whole))

    return compute


@dataclass(frozen=True)
class _Tail:
    """The part of a loss that is compared, as functions of lists of arrays.

    Args:
        head: returns what the tail reads, from all leaves of the loss's arguments.
        of_part: returns the loss of a part.
        of_whole: returns that of the whole.
        shapes: of what it reads, in a part and in the whole.
        rows: of each value that it reads, the dimension of the rows; ``None`` if it has none.
        varied: positions of those by which the loss is differentiated.
    """

    head: Callable[..., list[Any]]
    of_part: Callable[..., list[Any]]
    of_whole: Callable[..., list[Any]]
    shapes: tuple[Sequence[Any], Sequence[Any]]
    rows: Places
    varied: Sequence[int]

    def of_all(self, arguments: Any, sizes: tuple[int, int]) -> Callable[[], Compared]:
        """Return what computes the loss and the gradients by what the tail reads, of all parts and of the whole.

        Those by what belongs to rows are taken times their number, so that they are as large as those by parameters.
        """
        leaves = jax.tree.leaves(arguments)
        of_part, of_whole = (
            Lowered(self._differentiated(run, parts), [shapes[at] for at in self.varied], list(shapes))
            for run, parts, shapes in zip(
                (self.of_part, self.of_whole), (sizes[1] // sizes[0], 1), self.shapes, strict=True
            )
        )
        places = [self.rows[at] for at in self.varied]
        count, total = sizes

        def compute() -> Compared:
            read = Lowered(self.head, *leaves)(*leaves)  # nothing of the user's is traced: it may be another thread

            def of(run: Any, start: int, rows: int) -> LossAndGradients:
                given = [leaf[_span(at, start, rows)] for leaf, at in zip(read, self.rows, strict=True)]
                value, gradients = run([given[at] for at in self.varied], given)
                scaled = [leaf if at is None else leaf * np.asarray(total, leaf.dtype)
                          for leaf, at in zip(gradients, places, strict=True)]  # fmt: skip
                return value, scaled

            parts = (of(of_part, start, count) for start in range(0, total, count))
            return _summed(parts, of(of_whole, 0, total), places)

        return compute

    def _differentiated(self, run: Callable[..., list[Any]], parts: int) -> Callable[..., LossAndGradients]:
        def value(varied: Sequence[Any], read: Sequence[Any]) -> Any:
            new = dict(zip(self.varied, varied, strict=True))
            return run(*(new.get(at, leaf) for at, leaf in enumerate(read)))[0]

        return value_and_gradients(value, parts)


def _span(at: int | None, start: int, count: int) -> tuple[Any, ...]:
    """Return the index of some rows, which are along dimension ``at``; of everything if there are none."""
    return (...,) if at is None else (slice(None),) * at + (slice(start, start + count),)


def _tail(
    value: Callable[..., Any],
    of_part: Any,
    of_whole: Any,
    sizes: tuple[int, int],
    traces: tuple[Any, Any] | None = None,
) -> _Tail | None:
    """Return the part of a loss that is to be compared; ``None`` if that is all of it, or cannot be told apart."""
    if sizes[0] < 2:  # a dimension of one row could be any
        return None
    given = of_part, of_whole
    if traces is None or not all(map(_is_of, traces, given)):
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            traces = jax.make_jaxpr(value)(*of_part), jax.make_jaxpr(value)(*of_whole)
    one, two = map(_unwrapped, traces)
    marks = [PARAMETER] * len(jax.tree.leaves(of_part[0]))
    marks += [Mark(Kind.ROWS, at=0) if jnp.ndim(leaf) else FIXED for leaf in jax.tree.leaves(of_part[1:])]
    try:
        return _cut_off(one, two, marks, sizes, len(jax.tree.leaves(of_part[0])))
    except UnlikeError:
        return None


def _is_of(closed: Any, given: Any) -> bool:
    """Return whether a jaxpr was traced for arguments of these shapes."""
    # A part of one row was traced as one of two (``sizes_of``), so traces may have other shapes than the step.
    shapes = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(given)]
    return [(aval.shape, aval.dtype) for aval in closed.in_avals] == shapes


def _cut_off(one: Any, two: Any, marks: Sequence[Mark], sizes: tuple[int, int], params: int) -> _Tail | None:
    """Return the part of a loss that is to be compared; ``None`` if that is all of it.

    Raises:
        UnlikeError: what it reads cannot be cut into parts.
    """
    # The walk marks variables of the jaxpr; values of a flat list have numbers, which are the same in both traces.
    env = marks_inside(WalkedAxis("rows", sizes), one, two, marks)
    small, large = FlatFunction.of(one), FlatFunction.of(two)
    marked = dict(zip(small.inputs, marks, strict=True))
    for op in small.ops:
        marked.update((number, env.get(var, FIXED)) for number, var in zip(op.results, op.eqn.outvars, strict=True))
    first, second = (_after(flat.ops, marked) for flat in (small, large))
    read = [number for number in reads(first) if number not in small.constants]
    if read != [number for number in reads(second) if number not in large.constants]:
        raise UnlikeError
    rows = [_rows(marked[number], small.avals[number], large.avals[number], sizes) for number in read]
    if not first or set(read) <= set(small.inputs):  # nothing is unknown, or nothing comes before it
        return None
    trained = _differentiable(small.ops, small.inputs[:params])
    return _Tail(
        large.function(large.ops, large.inputs, read),
        small.function(first, read, small.outputs[:1]),
        large.function(second, read, large.outputs[:1]),
        (_shapes(small, read), _shapes(large, read)),
        rows,
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
        # A gradient by what none flows through would be zero in parts and whole, and prove nothing.
        if op.name != "stop_gradient" and not found.isdisjoint(op.inputs):
            found.update(op.results)
    return found


def _rows(mark: Mark, small: Any, large: Any, sizes: tuple[int, int]) -> int | None:
    """Return the dimension along which a value of the whole is cut into those of parts; ``None`` if all have it whole.

    Raises:
        UnlikeError: the values of parts are no cuts of it.
    """
    plain = mark.power == 0 and not mark.counts
    if plain and mark.kind == Kind.FIXED and small.shape == large.shape:
        return None
    at = mark.at
    if plain and mark.kind == Kind.ROWS and at is not None and mark.inner == 1 and not mark.shared:
        expected = (*small.shape[:at], sizes[1], *small.shape[at + 1 :])
        if small.shape[at] == sizes[0] and large.shape == expected:
            return at
    raise UnlikeError


def _unwrapped(closed: Any) -> Any:
    """Return the jaxpr inside one that does nothing but call it, such as that of a jitted loss."""
    # Otherwise the tail would begin at this one call, and all of the loss would be compared.
    jaxpr = closed.jaxpr
    if len(jaxpr.eqns) == 1 and jaxpr.eqns[0].primitive.name == "jit" and not closed.consts:
        (eqn,) = jaxpr.eqns
        if list(eqn.invars) == list(jaxpr.invars) and list(eqn.outvars) == list(jaxpr.outvars):
            return _unwrapped(called(eqn))
    return closed
