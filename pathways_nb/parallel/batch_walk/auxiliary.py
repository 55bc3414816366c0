"""How auxiliary outputs of the parts of a batch become those of the whole batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from pathways_nb.errors import UsageError, did_you_mean
from pathways_nb.parallel.batch_walk.equation_pair import WalkedAxis, grown
from pathways_nb.parallel.batch_walk.marks import Kind, Mark

How = Literal["rows", "mean", "sum", "max", "min"]
_GIVEN = ("sum", "mean", "max", "min")


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

    def join(self, parts: Sequence[Any], shares: Sequence[float]) -> Any:
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
            # The mean of whole numbers or truth values is a fraction.
            dtype = parts[0].dtype if jnp.issubdtype(parts[0].dtype, jnp.inexact) else jnp.float32
            return sum(part * share for part, share in zip(parts, shares, strict=True)).astype(dtype)
        return getattr(jnp.stack(parts), self.how)(0)


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
                f'{where}: aux={aux!r} must say "sum", "mean", "max" or "min" of an output, as in aux={{"count": '
                f'"sum"}}, or of all: aux="sum".{did_you_mean(one, _GIVEN)}'
            )


def forms(
    where: str, axes: Sequence[WalkedAxis], tree: Any, shapes: Sequence[Sequence[tuple[Any, Any]]],
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
        UsageError: it cannot be known of some outputs, all of which are named by their paths.
    """
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    names = [jax.tree_util.keystr(path, simple=True, separator=".") or "aux" for path in paths]
    named = _by_name(where, given, names) if isinstance(given, Mapping) else {}
    found, unknown = [], dict[str, str]()
    for at, name in enumerate(names):
        how, own = named.get(name), shapes[at]
        if how is None and given in _GIVEN and not any(grown((a.shape, b.shape)) for a, b in own):
            how = given  # said of all outputs, so of those without rows
        known = None if marks is None else marks[at]
        form = _form(where, axes, name, own, known, how)
        found.append(form)
        if form is None:
            unknown[name] = _described(own[0][0], known)
    if unknown:
        raise UsageError(_undeclared(where, unknown))
    return tuple(one for one in found if one is not None)


def _undeclared(where: str, unknown: Mapping[str, str]) -> str:
    """Return the error of outputs of which it must be said how they are joined.

    Args:
        where: ``"fsdp"`` or ``"pipeline"``.
        unknown: by path, what each output is.
    """
    # of a truth value "max" says whether it is true of any part; a sum of them is a count
    wanted = ", ".join(f'"{name}": "{"max" if what.startswith("bool") else "sum"}"' for name, what in unknown.items())
    listed = "; ".join(f"{name}, {what}" for name, what in unknown.items())
    several = len(unknown) > 1
    return (
        f"{where}: how parts of the batch make {'these auxiliary outputs' if several else 'this auxiliary output'} of "
        f"the whole is not known: {listed}. Say it{' of each' if several else ''}: aux={{{wanted}}}, or "
        f'"mean", "max" or "min"; or return pw.mean(total, count), or a value of each row.'
    )


def _described(one: Any, marks: Sequence[Mark] | None) -> str:
    """Return what an output is, and why it is not known how it is joined."""
    kind = "a Python number" if _is_python(one, marks) else f"{one.dtype}{list(one.shape)}"
    reason = next((mark.reason for mark in marks or () if mark.reason), None)
    return f"{kind} from {reason}" if reason else kind


def _is_python(one: Any, marks: Sequence[Mark] | None) -> bool:
    # Such as len(x): it is a float to JAX, but nobody says that a mean over parts is meant.
    return bool(one.weak_type and marks is not None and marks[0].number is not None)


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
    where: str, axes: Sequence[WalkedAxis], name: str, shapes: Sequence[tuple[Any, Any]], marks: Any, given: How | None
) -> Auxiliary | None:
    """Return how an output is joined; ``None`` if that is not known."""
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
        return _rows(where, axes, name, [first.shape for first, _ in shapes], dims, marks)
    # Whole numbers are counts as often as constants, so their user says how they are joined.
    floating = jnp.issubdtype(one.dtype, jnp.inexact) and not _is_python(one, marks)
    if floating and not any(dims) and (marks is None or all(mark.is_mean for mark in marks)):
        return Auxiliary("mean")
    return None


def _rows(
    where: str,
    axes: Sequence[WalkedAxis],
    name: str,
    shapes: Sequence[tuple[int, ...]],
    dims: Sequence[list[int]],
    marks: Any,
) -> Auxiliary:
    """Return how an output is joined that grows with the batch; ``shapes`` are those of a part along each axis."""
    shape = shapes[0]
    # Elements of each row along the dimension that grows: rows may have been merged with what follows them.
    at, each = dims[0][0], shape[dims[0][0]] // axes[0].sizes[0]
    own = marks is None or _is_of_each(marks[0], at, each)
    if len(dims[0]) > 1 or shape[at] % axes[0].sizes[0] or not own:
        raise UsageError(
            f"{where}: the auxiliary output {name} has the shape {list(shape)} and grows with the batch, but its rows "
            f"are not those of the batch, one after the other, or depend on other rows or on how many there are. "
            f"Return an array with one dimension for the batch."
        )
    if len(axes) == 1:
        return Auxiliary("rows", at)
    if len(dims[1]) != 1 or dims[1] == dims[0]:
        raise UsageError(
            f"{where}: the auxiliary output {name} has the shape {list(shape)}: token slices are joined along one "
            f"dimension of tokens. Return a value for each token, as (batch, tokens, …)."
        )
    tokens = dims[1][0]
    # Of tokens every slice has some, so what needs all of them cannot be joined; of rows that is known already.
    if marks is not None and not _is_of_each(marks[1], tokens, shapes[1][tokens] // axes[1].sizes[0]):
        raise UsageError(
            f"{where}: the auxiliary output {name} has the shape {list(shape)}, but what belongs to a token depends on "
            f"other tokens or on how many there are, and a slice has only some. Return what each token has by itself."
        )
    return Auxiliary("rows", at, tokens)


def _is_of_each(mark: Mark, at: int, inner: int) -> bool:
    """Return whether what stands along a dimension belongs to one row each, or one token, and to nothing else."""
    return (mark.kind, mark.at, mark.inner, mark.power) == (Kind.ROWS, at, inner, 0) and not mark.shared
