"""Examines a loss: traces it at two sizes, walks both traces, and says what it and its auxiliary outputs are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh

from pathways_nb.cost.jaxpr.primitives import RANDOM
from pathways_nb.errors import PathwaysError
from pathways_nb.parallel.batch_walk.auxiliary import Auxiliary, forms
from pathways_nb.parallel.batch_walk.equation_pair import WalkedAxis
from pathways_nb.parallel.batch_walk.marks import FIXED, Kind, Mark, Reason
from pathways_nb.parallel.batch_walk.verdicts import LEFT_OUT, ONE_PART, Verdict, drawn, of_loss, warn_undecided
from pathways_nb.parallel.batch_walk.walk import walk
from pathways_nb.parallel.random_keys import is_random_key
from pathways_nb.program import jax_contexts
from pathways_nb.program.items import equations

PARAMETER = Mark(trained=True)
KEY = Mark(anew=True)
"""Of a random key that is an argument: every part of the batch gets one of its own."""


class Walked(NamedTuple):
    """A function that was walked.

    Args:
        marks: of its outputs.
        shapes: of its outputs at both sizes, as trees.
    """

    marks: Sequence[Mark]
    shapes: tuple[Any, Any]


@dataclass(frozen=True)
class Examined:
    """What is known of a loss, for one shape of its batch.

    Args:
        axes: what is split.
        verdicts: for each axis, whether the loss is a mean over it.
        aux: how each auxiliary output is joined.
        tree: structure of the auxiliary outputs; of ``None`` without.
        means: number of the loss's calls of ``pw.mean``.
        draws: whether it draws random numbers, so that its parts draw others than the whole.
        traces: jaxprs of a part and of the whole, if numbers are to be compared and these are kept.
    """

    axes: tuple[WalkedAxis, ...]
    verdicts: tuple[Verdict, ...]
    aux: tuple[Auxiliary, ...]
    tree: Any
    means: int
    draws: bool
    traces: tuple[Any, Any] | None = None

    @classmethod
    def of_one_part(cls, aux: Any, means: int, draws: bool) -> Examined:
        """Return what is known of a loss whose batch is not split, with the shapes of its auxiliary outputs."""
        leaves, tree = jax.tree.flatten(aux)
        return cls((), (), (Auxiliary("mean"),) * len(leaves), tree, means, draws)

    def decided(
        self, where: str, name: str, compare: Callable[[WalkedAxis, Verdict], Callable[[], Verdict]] | None
    ) -> Callable[[], str]:
        """Begin to decide by numbers where the structure did not.

        Args:
            where: ``"fsdp"`` or ``"pipeline"``, for errors.
            name: of the loss.
            compare: begins to compare parts with the whole along an axis; ``None`` where there are no numbers.

        Returns:
            What waits for the numbers and returns what decided, for each axis, or raises a ``UsageError`` if the loss
            of the parts is another than that of the whole.
        """
        begun: list[Verdict | Callable[[], Verdict]] = []
        for axis, verdict in zip(self.axes, self.verdicts, strict=True):
            if verdict.unknown is None:
                begun.append(verdict)
            elif self.draws:  # parts and whole draw other numbers, so their losses differ in any case
                begun.append(drawn(verdict))
            else:
                begun.append(verdict if compare is None else compare(axis, verdict))

        def conclude() -> str:
            verdicts = [each() if callable(each) else each for each in begun]
            for verdict in verdicts:
                if verdict.by == "nobody":
                    warn_undecided(where, name, verdict)
            return "; ".join(dict.fromkeys(map(str, verdicts))) or str(ONE_PART)

        return conclude


def draws(jaxprs: Iterable[Any]) -> bool:
    """Return whether a traced function draws random numbers."""
    return any(eqn.primitive.name in RANDOM for jaxpr in jaxprs for eqn in equations(jaxpr))


def walked(
    fn: Callable[..., Any], axis: WalkedAxis, given: Sequence[Sequence[Any]], marks: Sequence[Any],
    inside: AbstractContextManager[Any] | None = None, keep: dict[Any, Any] | None = None,
) -> Walked | Reason:  # fmt: skip
    """Trace a function at two sizes and walk both traces.

    Args:
        fn: the function.
        axis: what is walked along.
        given: shapes of its arguments, as trees, at the smaller size and at the larger.
        marks: of its arguments, as trees with a mark for each array.
        inside: the context in which it is traced; by default without a mesh.
        keep: traces by function and shapes, which are used again.

    Returns:
        What is known of the outputs, or why the function cannot be traced at another size.
    """
    keep = {} if keep is None else keep
    keys = [trace_key(fn, shapes) for shapes in given]
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())) if inside is None else inside:
        for key, sized in zip(keys, given, strict=True):
            if key not in keep:
                keep[key] = _traced(fn, axis, sized)
    lost = next((keep[key] for key in keys if isinstance(keep[key], Reason)), None)
    if lost is not None:
        return lost
    (first, shapes), (second, others) = (keep[key] for key in keys)
    found = walk(axis, first, second, jax.tree.leaves(marks, is_leaf=lambda leaf: isinstance(leaf, Mark)))
    return Walked(found, (shapes, others))


def _traced(fn: Callable[..., Any], axis: WalkedAxis, given: Sequence[Any]) -> Any:
    """Return the jaxpr of a function and the shapes of its outputs, or why it cannot be traced at this size."""
    try:
        return jax.make_jaxpr(fn, return_shape=True)(*given)
    except PathwaysError:  # it says itself what is wrong
        raise
    except Exception as error:  # of the user's function, which may fit one batch size only
        why = str(error).strip().split("\n")[0][:160]
        return Reason(f"it cannot be traced for another number of {axis.name}: {why}")


def trace_key(fn: Callable[..., Any], given: Any) -> Any:
    """Return what a trace depends on: the function, the shapes of its arguments, and JAX's contexts."""
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(given))
    return fn, str(jax.tree.structure(given)), shapes, jax_contexts.current()


def judged(
    where: str, name: str, axes: Sequence[WalkedAxis], found: Sequence[Walked | Reason], outputs: tuple[Any, Any],
    given: Any, check: bool,
) -> tuple[tuple[Verdict, ...], tuple[Auxiliary, ...]]:  # fmt: skip
    """Return what the walks over a loss say, one for each axis that is split.

    Args:
        where: ``"fsdp"`` or ``"pipeline"``, for errors.
        name: of the loss.
        axes: what is split.
        found: of each axis, what is known of the loss's value followed by its auxiliary outputs.
        outputs: the value and the auxiliary outputs of one part, as the loss returns them or as shapes.
        given: ``aux=``.
        check: whether the loss must be a mean over what is split.

    Returns:
        The verdict along each axis, and how each auxiliary output is joined.

    Raises:
        UsageError: it is not, or it is unknown how an auxiliary output is joined.
    """
    aux = outputs[1]
    count = 1 + len(jax.tree.leaves(aux))
    # Of a loss that could not be traced at another size, nothing is known of any output.
    walks = [
        one
        if isinstance(one, Walked)
        else Walked([Mark(Kind.UNKNOWN, trained=True, reason=one)] * count, (outputs, outputs))
        for one in found
    ]
    if check:
        verdicts = tuple(of_loss(where, name, one.marks[0], axis) for axis, one in zip(axes, walks, strict=True))
    else:
        verdicts = (LEFT_OUT,) * len(axes)
    pairs = [tuple(zip(*(jax.tree.leaves(side)[1:] for side in one.shapes), strict=True)) for one in walks]
    marks = [one.marks[1:] for one in walks] if check else None
    # From (axes, outputs) to (outputs, axes): each output is joined along all axes at once.
    by_output = [[pair[at] for pair in pairs] for at in range(count - 1)]
    known = None if marks is None else [[one[at] for one in marks] for at in range(count - 1)]
    return verdicts, forms(where, axes, aux, by_output, known, given)


def sizes_of(part: int, parts: int) -> tuple[int, int]:
    """Return the sizes at which a function is traced, of a part and of the whole."""
    # A dimension of 1 row would be like those that broadcasting and squeezing add and remove.
    return max(part, 2), max(part, 2) * parts


def marks_of(tree: Any, at: int) -> Any:
    """Return the marks of a batch: what has a dimension ``at`` belongs to the rows along it, other values are fixed."""

    def mark(leaf: Any) -> Mark:
        if len(leaf.shape) > at:
            return Mark(Kind.ROWS, at=at)
        return KEY if is_random_key(leaf) else FIXED

    return jax.tree.map(mark, tree)


def resized(tree: Any, at: int, size: int) -> Any:
    """Return shapes whose dimension ``at`` has another size."""

    def one(leaf: Any) -> Any:
        shape = leaf.shape
        return jax.ShapeDtypeStruct((*shape[:at], size, *shape[at + 1 :]) if len(shape) > at else shape, leaf.dtype)

    return jax.tree.map(one, tree)
