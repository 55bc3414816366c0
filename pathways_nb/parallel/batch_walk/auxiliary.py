"""How auxiliary outputs of the parts of a batch become those of the whole batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from pathways_nb.errors import UsageError, did_you_mean
from pathways_nb.parallel.batch_walk.marks import Kind, Mark
from pathways_nb.parallel.batch_walk.operation import Axis, grown

How = Literal["rows", "mean", "sum", "max"]
_GIVEN = ("sum", "mean", "max")


class Auxiliary(NamedTuple):
    """How one auxiliary output is joined.

    Args:
        how: its parts are rows that follow each other, or are averaged, added up, or compared.
        rows: the dimension of the rows.
        tokens: the dimension of the tokens, if they are split as well and the output has one; else −1.
    """

    how: How
    rows: int = 0
    tokens: int = -1

    def joined(self, parts: Sequence[Any], shares: Sequence[float]) -> Any:
        """Return the output of the whole batch.

        Args:
            parts: of the microbatches, in order.
            shares: of each in the whole batch; they add up to 1.
        """
        if self.how == "rows":
            return jnp.concatenate(parts, self.rows)
        if len(parts) == 1:
            return parts[0]
        if self.how == "mean":
            kept = parts[0].dtype if jnp.issubdtype(parts[0].dtype, jnp.inexact) else jnp.float32
            return sum(part * share for part, share in zip(parts, shares, strict=True)).astype(kept)
        return jnp.stack(parts).sum(0) if self.how == "sum" else jnp.stack(parts).max(0)


def arguments(where: str, aux: Any, has_aux: bool) -> None:
    """Check ``aux=`` of a pipeline or a step.

    Raises:
        UsageError: it is of another form, or there are no auxiliary outputs.
    """
    if aux is None:
        return
    said = list(aux.values()) if isinstance(aux, Mapping) else [aux]
    if not has_aux:
        raise UsageError(f"{where}: aux={aux!r} was given without has_aux=True.")
    for one in said:
        if one not in _GIVEN:
            raise UsageError(
                f'{where}: aux={aux!r} must say "sum", "mean" or "max" of an output, as in aux={{"count": "sum"}}, or '
                f'of all: aux="sum".{did_you_mean(one, _GIVEN)}'
            )


def forms(
    where: str, axes: Sequence[Axis], tree: Any, shapes: Sequence[Sequence[tuple[Any, Any]]],
    marks: Sequence[Sequence[Mark]] | None, given: Any,
) -> tuple[Auxiliary, ...]:  # fmt: skip
    """Return how each auxiliary output is joined.

    Args:
        where: ``"fsdp"`` or ``"pipeline"``, for errors.
        axes: what is split: rows, and tokens if they are.
        tree: the outputs as the loss returned them, to know Python numbers.
        shapes: of each output, for each axis, at both sizes.
        marks: of each output, for each axis; ``None`` if the loss is not checked.
        given: ``aux=``.

    Raises:
        UsageError: it cannot be known of an output, which is named by its path.
    """
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    names = [jax.tree_util.keystr(path, simple=True, separator=".") or "aux" for path in paths]
    named = _by_name(where, given, names) if isinstance(given, Mapping) else {}
    found = []
    for at, name in enumerate(names):
        how, own = named.get(name), shapes[at]
        if how is None and given in _GIVEN and not any(grown((a.shape, b.shape)) for a, b in own):
            how = given  # said of all outputs, so of those without rows
        found.append(_form(where, axes, name, own, None if marks is None else marks[at], how))
    return tuple(found)


def _by_name(where: str, given: Mapping[Any, How], names: Sequence[str]) -> dict[str, How]:
    found: dict[str, How] = {}
    for key, how in given.items():
        under = [name for name in names if name == str(key) or name.startswith(f"{key}.")]
        if not under:
            raise UsageError(
                f"{where}: aux= names {key!r}, but the auxiliary outputs are {', '.join(names)}."
                f"{did_you_mean(str(key), names)}"
            )
        found.update(dict.fromkeys(under, how))
    return found


def _form(
    where: str, axes: Sequence[Axis], name: str, shapes: Sequence[tuple[Any, Any]], marks: Any, given: How | None
) -> Auxiliary:
    dims = [grown((one.shape, two.shape)) for one, two in shapes]
    one = shapes[0][0]
    if given is not None:
        if any(dims):
            raise UsageError(
                f"{where}: aux= says {given!r} of {name}, whose shape {list(one.shape)} grows with the batch: its rows "
                f"come back as rows. Leave it out of aux=, or reduce it in the loss."
            )
        return Auxiliary(given)
    if dims[0]:
        return _rows(where, axes, name, one.shape, dims, marks)
    python = one.weak_type and marks is not None and marks[0].number is not None
    floating = jnp.issubdtype(one.dtype, jnp.inexact) and not python
    if floating and not any(dims) and (marks is None or all(mark.is_mean for mark in marks)):
        return Auxiliary("mean")
    kind = "a Python number" if python else f"{one.dtype}{list(one.shape)}"
    why = "" if marks is None else next((f": {mark.reason}" for mark in marks if mark.reason), "")
    raise UsageError(
        f"{where}: how parts of the batch make the auxiliary output {name} of the whole, {kind}, is not known{why}. "
        f'Say it: aux={{"{name}": "sum"}}, or "mean" or "max"; or return pw.mean(total, count), or a value of each row.'
    )


def _rows(
    where: str, axes: Sequence[Axis], name: str, shape: tuple[int, ...], dims: Sequence[list[int]], marks: Any
) -> Auxiliary:
    """Return how an output is joined that grows with the batch."""
    at, each = dims[0][0], shape[dims[0][0]] // axes[0].sizes[0]
    own = marks is None or (marks[0].kind, marks[0].at, marks[0].inner) == (Kind.ROWS, at, each)
    if len(dims[0]) > 1 or shape[at] % axes[0].sizes[0] or not own:
        raise UsageError(
            f"{where}: the auxiliary output {name} has the shape {list(shape)} and grows with the batch, but its rows "
            f"are not those of the batch, one after the other. Return an array with one dimension for the batch."
        )
    if len(axes) == 1:
        return Auxiliary("rows", at)
    if len(dims[1]) != 1 or dims[1] == dims[0]:
        raise UsageError(
            f"{where}: the auxiliary output {name} has the shape {list(shape)}: token slices are joined along one "
            f"dimension of tokens. Return a value for each token, as (batch, tokens, …)."
        )
    return Auxiliary("rows", at, dims[1][0])
