"""How a row's step divides its parameters and the optimizer's state over the mesh."""

from __future__ import annotations

from typing import Any

from jax.sharding import PartitionSpec

from pathways_nb.published.step_rows import PublishedStep

P = PartitionSpec


def optimizer_shards(row: PublishedStep) -> int:
    """Return the ranks that one copy of the optimizer's state is divided over, among replicas."""
    return row.optimizer_shards or (row.dp if row.fp32_gradients else 1)


def parameter_layouts(row: PublishedStep, layers: int) -> dict[str, tuple[tuple[int, ...], PartitionSpec]]:
    """Return shape and layout of each parameter; those of blocks are stacked (JAX), or one by one with a number.

    Args:
        row: the setting.
        layers: blocks.
    """
    m = row.model
    wide, narrow = m.heads * m.head_dim, m.kv_heads * m.head_dim
    column, line = P("fsdp", "tp"), P("tp", "fsdp")
    block: dict[str, tuple[tuple[int, ...], PartitionSpec]] = {
        "query": ((m.d_model, wide), column), "key": ((m.d_model, narrow), column),
        "value": ((m.d_model, narrow), column), "out": ((wide, m.d_model), line),
        "up": ((m.d_model, m.d_ff), column), "down": ((m.d_ff, m.d_model), line),
        "norm1": ((m.d_model,), P()), "norm2": ((m.d_model,), P()),
    }  # fmt: skip
    if m.gated:
        block["gate"] = ((m.d_model, m.d_ff), column)
    found: dict[str, tuple[tuple[int, ...], PartitionSpec]] = {
        # PyTorch's own tensor parallelism leaves the embedding whole, and gathers the logits for the loss.
        "embedding": ((m.vocab, m.d_model), P(None, "fsdp") if row.fsdp2 else P("tp", "fsdp"))
    }
    if not m.tied:
        found["head"] = ((m.d_model, m.vocab), column)
    for name, (shape, spec) in block.items():
        if row.stack == "jax":
            found[f"block/{name}"] = ((layers, *shape), P(None, *spec))
        else:
            found |= {f"block{number}/{name}": (shape, spec) for number in range(layers)}
    return found


def state_specs(row: PublishedStep, layers: int) -> dict[str, PartitionSpec]:
    """Return the layout of the optimizer's state by parameter: as the parameters, or over the replicas (ZeRO-1).

    Args:
        row: the setting.
        layers: blocks.
    """
    shards = optimizer_shards(row)
    if shards == 1:
        return {name: spec for name, (_, spec) in parameter_layouts(row, layers).items()}
    found = {}
    for name, (shape, spec) in parameter_layouts(row, layers).items():
        # The first dimension that the ranks divide, on top of the part that a device has of it.
        each = {"tp": row.tp, "fsdp": row.fsdp}
        sizes = [size // each.get(part, 1) for size, part in zip(shape, (*spec, None, None), strict=False)]
        at = next((n for n, size in enumerate(sizes) if size % shards == 0), None)
        parts: list[Any] = [*spec, *[None] * (len(shape) - len(spec))]
        if at is not None and len(shape) > 1:
            parts[at] = ("zero", parts[at]) if parts[at] else "zero"
        found[name] = P(*parts)
    return found
