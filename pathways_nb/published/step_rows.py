"""The rows of published steps: their fields, and what is assumed where a source is silent."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pathways_nb.errors import UsageError
from pathways_nb.util.words import counted

Remat = Literal["full", "none", "dots", "save"]
_OTHER_PRODUCTS = re.compile(r"\b(?:fp16|fp8|fp4|int8|int4|mxfp\w*|nvfp4)\b", re.IGNORECASE)
_MESH = ("dp", "fsdp", "tp")
_MODEL = ("layers", "d_model", "d_ff", "heads", "kv_heads", "head_dim", "vocab", "gated_mlp", "tied_embeddings")


@dataclass(frozen=True)
class DecoderShape:
    """A decoder.

    Args:
        layers: blocks.
        d_model: features.
        d_ff: hidden features of the feed-forward part.
        heads: of queries.
        kv_heads: of keys and values.
        head_dim: features of a head.
        vocab: words.
        gated: whether the feed-forward part has a gate, and so three matrices.
        tied: whether the head shares the embedding's matrix.
    """

    layers: int
    d_model: int
    d_ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    gated: bool
    tied: bool

    @property
    def block_weights(self) -> int:
        """Weights of the matrices of one block."""
        attention = self.d_model * self.head_dim * 2 * (self.heads + self.kv_heads)
        return attention + (3 if self.gated else 2) * self.d_model * self.d_ff

    @property
    def weights(self) -> int:
        """Weights of all matrices."""
        return self.layers * self.block_weights + (1 if self.tied else 2) * self.vocab * self.d_model


@dataclass(frozen=True)
class PublishedStep:
    """One measured step, or one to predict.

    Args:
        id: a name.
        stack: ``"jax"`` or ``"torch"``.
        chip: name of the chip.
        devices: number of devices; chips of a TPU.
        dp: replicas.
        fsdp: devices that parameters are divided over.
        tp: devices that matrices are divided over.
        optimizer_shards: ranks that the optimizer's state is divided over, if not as the parameters.
        zero2: whether parameters stay whole after the forward pass.
        fsdp2: whether PyTorch's FSDP2 divides parameters.
        model: of the step.
        seq: tokens of a sequence.
        batch: sequences of a step.
        accumulate: microbatches one after another.
        bf16_weights: whether parameters, gradients and states are bfloat16, not float32.
        fp32_gradients: whether gradients are accumulated in float32; parameters are bfloat16 then, and the optimizer
            has a float32 copy of them, divided over the replicas as its state is (Megatron's distributed optimizer).
        remat: what the backward pass computes again.
        assumed: how words of the row are read that say nothing known; empty without such.
        seconds: measured; None if not known.
        peak: measured bytes of memory; None if not known.
        family: rows that may be compared; empty if not known.
        source: empty if not known.
    """

    id: str
    stack: str
    chip: str
    devices: int
    dp: int
    fsdp: int
    tp: int
    optimizer_shards: int | None
    zero2: bool
    fsdp2: bool
    model: DecoderShape
    seq: int
    batch: int
    accumulate: int
    bf16_weights: bool
    fp32_gradients: bool
    remat: Remat
    assumed: str
    seconds: float | None
    peak: float | None
    family: str
    source: str

    @property
    def microbatch(self) -> int:
        """Sequences of one microbatch on all devices."""
        return self.batch // self.accumulate

    @property
    def flops(self) -> tuple[float, float]:
        """FLOPs of a step by the formula, of products and of causal attention: what is computed again included."""
        tokens = float(self.batch * self.seq)
        model = self.model
        again = {"full": 1.0, "save": 0.6}.get(self.remat, 0.0)
        blocks = 2.0 * tokens * model.layers * model.block_weights
        head = 2.0 * tokens * model.vocab * model.d_model
        attention = 2.0 * tokens * self.seq * model.heads * model.head_dim * model.layers
        return (3 + again) * blocks + 3 * head, (3.5 + (1 if self.remat == "full" else 0)) * attention


@dataclass(frozen=True)
class UnreadRow:
    """A row that lacks what cannot be assumed.

    Args:
        id: its name.
        reason: what is wrong with it.
    """

    id: str
    reason: str


def read_rows(path: Path) -> list[PublishedStep | UnreadRow]:
    """Return the rows of a JSON file, a list of objects in the form of ``pathways_datasets/measured_steps.json``.

    Raises:
        UsageError: the file cannot be read, or holds no list of objects.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}; give a JSON file with a list of rows.") from None
    if isinstance(found, Mapping):
        found = found.get("rows")
    if not isinstance(found, list):
        raise UsageError(f"{path}: this is no list of rows; each row is an object with id, chip, devices, model, …")
    return [_row_or_reason(one, number) for number, one in enumerate(found)]


def _row_or_reason(said: Any, number: int) -> PublishedStep | UnreadRow:
    """Return one row, or why it is none: one wrong row must not take the others along."""
    if not isinstance(said, Mapping):
        return UnreadRow(f"row {number}", f"row {number} is {said!r}; write an object with id, chip, devices, model, …")
    try:
        return row_of(said, number)
    except (UsageError, TypeError, ValueError, AttributeError, OverflowError, LookupError) as error:
        return UnreadRow(str(said.get("id") or f"row {number}"), str(error))


def row_of(said: Mapping[str, Any], number: int = 0) -> PublishedStep:
    """Return one row.

    Args:
        said: its fields, as the dataset has them; each may be absent or None, but for those that decide the step.
        number: of the row, for the error.

    Raises:
        UsageError: a field that decides the step is absent, or none of its values, or what it says cannot be.
    """
    name = str(said.get("id") or f"row {number}")

    def need(field: str, where: Mapping[str, Any], usual: int | None = None) -> int:
        value = where.get(field)
        value = usual if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{name}: {field} is {value!r}; write a whole number of at least 1.")
        return value

    model, mesh = _part(said, "model", _MODEL, name), _part(said, "mesh", _MESH, name)
    sizes = {axis: need(axis, mesh, 1) for axis in _MESH}
    devices = need("devices", said)
    heads, width = need("heads", model), need("d_model", model)
    precision, schedule = str(said.get("precision") or "bf16"), str(said.get("schedule") or "")
    if other := _OTHER_PRODUCTS.search(precision):
        raise UsageError(f"{name}: precision is {precision!r}; products in bf16 are predicted, none in {other[0]}.")
    remat, assumed = _remat(said.get("remat") or "none", name)
    shards = need("optimizer_shards", said, 1)
    stack = str(said.get("stack") or "jax")
    if stack not in ("jax", "torch"):
        raise UsageError(f"{name}: the stack is {stack!r}; write 'jax' or 'torch'.")
    found = PublishedStep(
        id=name,
        stack=stack,
        chip=str(said.get("chip") or ""),
        devices=devices,
        **sizes,
        optimizer_shards=None if said.get("optimizer_shards") is None else shards,
        zero2="ZeRO-2" in schedule,
        fsdp2="FSDP2" in schedule,
        model=DecoderShape(
            layers=need("layers", model), d_model=width, d_ff=need("d_ff", model), heads=heads,
            kv_heads=need("kv_heads", model, heads), head_dim=need("head_dim", model, width // heads),
            vocab=need("vocab", model),
            # A published model that does not say shares nothing, as Llama.
            gated=_flag(model, "gated_mlp", True, name), tied=_flag(model, "tied_embeddings", False, name),
        ),
        seq=need("seq", said),
        batch=need("batch", said),
        accumulate=need("accumulate", said, 1),
        bf16_weights="bf16 weights" in precision or precision == "bf16 mixed",
        fp32_gradients="fp32 gradient" in precision,
        remat=remat,
        assumed=assumed,
        seconds=_seconds(said.get("step_seconds"), name),
        peak=_bytes(said.get("peak_memory"), name),
        family=str(said.get("family") or ""),
        source=str(said.get("source") or "").split(" ")[0],
    )  # fmt: skip
    _check_division(found)
    return found


def _check_division(row: PublishedStep) -> None:
    """Check that a row's devices, sequences and heads can be divided as it says.

    Raises:
        UsageError: they cannot.
    """
    model, shards, replicas = row.model, row.optimizer_shards or 1, row.dp * row.fsdp
    if replicas * row.tp != row.devices:
        named = f"dp {row.dp} × fsdp {row.fsdp} × tp {row.tp}"
        raise UsageError(f"{row.id}: the mesh of {named} has {replicas * row.tp} devices, not {row.devices}.")
    if row.dp % shards:
        raise UsageError(f"{row.id}: optimizer_shards {shards} does not divide the {row.dp} replicas (dp).")
    if row.batch % row.accumulate:
        raise UsageError(
            f"{row.id}: accumulate {row.accumulate} does not divide the {counted(row.batch, 'sequence')} of a step "
            f"(batch)."
        )
    if row.microbatch % replicas:
        raise UsageError(
            f"{row.id}: a microbatch of {counted(row.microbatch, 'sequence')} (batch / accumulate) cannot be divided "
            f"over {replicas} devices (dp × fsdp)."
        )
    for field, size in (("tp", row.tp), ("kv_heads", model.kv_heads)):
        if model.heads % size:
            raise UsageError(f"{row.id}: {field} {size} does not divide the {counted(model.heads, 'head')}.")


def _part(said: Mapping[str, Any], field: str, known: Collection[str], name: str) -> Mapping[str, Any]:
    """Return an object of a row.

    Raises:
        UsageError: it is none, or says what changes a step and is not followed, such as experts or another axis.
    """
    found = said.get(field)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise UsageError(f"{name}: {field} is {found!r}; write an object with {', '.join(known)}.")
    for key, value in found.items():
        # Words, such as a model's name, change no step; a number of something that is not known does.
        if key not in known and not isinstance(value, str) and value not in (None, False, 0, 1):
            raise UsageError(
                f"{name}: {field} has {key} {value!r}, which no prediction follows; known are {', '.join(known)}."
            )
    return found


def _flag(said: Mapping[str, Any], field: str, usual: bool, name: str) -> bool:
    """Return a truth value of a row.

    Raises:
        UsageError: it is none.
    """
    value = said.get(field)
    if value is not None and not isinstance(value, bool):
        raise UsageError(f"{name}: {field} is {value!r}; write true or false.")
    return usual if value is None else value


def _remat(said: Any, name: str) -> tuple[Remat, str]:
    """Return what is computed again, and what is assumed of it; words that name what is saved are ``"save"``.

    Raises:
        UsageError: it is no text.
    """
    if not isinstance(said, str):
        raise UsageError(f"{name}: remat is {said!r}; write full, none, dots, or in words what is saved.")
    if said in ("full", "none", "dots"):
        return said, ""  # type: ignore[return-value]  # just checked
    return ("save", "") if "save" in said else ("full", f"remat {said!r} is read as full")


def _seconds(said: Any, name: str) -> float | None:
    """Return measured seconds.

    Raises:
        UsageError: they are no positive number.
    """
    if said is None:
        return None
    if isinstance(said, bool) or not isinstance(said, (int, float)) or not 0 < said < math.inf:
        raise UsageError(f"{name}: step_seconds is {said!r}; write seconds above 0, or leave it out.")
    return float(said)


_UNITS = {"MB": 2**20, "MiB": 2**20, "GB": 2**30, "GiB": 2**30, "TB": 2**40, "TiB": 2**40}
"""Bytes of a unit; frameworks that print GB mean GiB."""


def _bytes(said: Any, name: str) -> float | None:
    """Return bytes of [number, unit], such as ``[80.7, "GB as printed"]``; only the unit's first word counts.

    Raises:
        UsageError: another unit.
    """
    if said is None:
        return None
    if not isinstance(said, Sequence) or len(said) != 2:
        raise UsageError(f'{name}: peak_memory is {said!r}; write a number and a unit, such as [80.7, "GB"].')
    unit = next(iter(str(said[1]).split()), "").rstrip(",")
    if unit not in _UNITS:
        raise UsageError(f"{name}: peak_memory has the unit {said[1]!r}; write one of {', '.join(_UNITS)}.")
    return float(said[0]) * _UNITS[unit]
