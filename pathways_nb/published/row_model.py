"""The training step of a row, as a JAX function with the shapes and shardings of its arguments.

It computes what the row's framework computes: bfloat16 products of weights that are gathered in bfloat16, blocks that
are computed again in the backward pass as the row says, logits in float32, AdamW after clipping by the global norm.
JAX's stack runs its blocks as a scan, as MaxText does; PyTorch's runs them one by one, so two depths are compiled and
the rest follows.

Attention is one kernel (``attention_kernels``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from pathways_nb.cost.hardware.chips import chip
from pathways_nb.published.attention_kernels import library_kernel, splash
from pathways_nb.published.row_layouts import optimizer_shards, parameter_layouts, state_specs
from pathways_nb.published.step_rows import PublishedStep

P = PartitionSpec
_REPLICAS = ("dp", "zero")
"""Axes of replicas: those with different parts of the optimizer's state are neighbours."""
_BATCH = (*_REPLICAS, "fsdp")
_HALF = jnp.bfloat16
_OFFLOADED = 0.15
"""Share of a chip's memory from which on the inputs of all blocks go to the host."""
_TILES = 8
"""Tiles of the loss on a TPU."""
_SAVED = ("query", "key", "value", "attended", "hidden")


class StepProgram(NamedTuple):
    """A step to be lowered.

    Args:
        function: takes arrays one by one and returns arrays.
        arguments: their shapes, types and shardings.
        donated: positions of those that results replace.
    """

    function: Callable[..., Any]
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    donated: tuple[int, ...]


def step_program(row: PublishedStep, layers: int, platform: str) -> StepProgram:
    """Return the step of a row.

    Args:
        row: the setting.
        layers: blocks to write down; fewer than the row's where the rest follows from two depths.
        platform: ``"cuda"`` or ``"tpu"``, which decides the kernel of attention.
    """
    shards = optimizer_shards(row)
    mesh = AbstractMesh(
        (row.dp // shards, shards, row.fsdp, row.tp), ("dp", "zero", "fsdp", "tp"), axis_types=(AxisType.Auto,) * 4
    )
    model = _RowModel(row, layers, mesh, platform)
    half = row.bf16_weights or row.fp32_gradients
    params = {
        name: jax.ShapeDtypeStruct(shape, _HALF if half else jnp.float32, sharding=NamedSharding(mesh, spec))
        for name, (shape, spec) in parameter_layouts(row, layers).items()
    }
    specs = state_specs(row, layers)
    kept = _HALF if row.bf16_weights else jnp.float32
    state = {
        name: jax.ShapeDtypeStruct(one.shape, kept, sharding=NamedSharding(mesh, specs[name]))
        for name, one in params.items()
    }
    master = state if row.fp32_gradients else {}
    shape = (row.accumulate, row.microbatch, row.seq)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=NamedSharding(mesh, P(None, _BATCH)))
    flat, tree = jax.tree.flatten((params, state, dict(state), dict(master), tokens))

    def step(*arrays: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(model.step(*jax.tree.unflatten(tree, arrays)))

    return StepProgram(step, tuple(flat), tuple(range(len(flat) - 1)))


class _RowModel:
    """The functions of one row's step.

    Args:
        row: the setting.
        layers: blocks.
        mesh: of dp × zero × fsdp × tp devices.
        platform: ``"cuda"`` or ``"tpu"``.
    """

    def __init__(self, row: PublishedStep, layers: int, mesh: AbstractMesh, platform: str):
        self.row, self.layers, self.mesh, self.platform = row, layers, mesh, platform
        self.scans = row.stack == "jax"
        # Replicas whose gradients are summed once a step compute apart until then.
        self.replicas = row.dp > 1 and row.stack == "torch"
        # Recipes for TPUs keep the inputs of blocks in the host's memory where they would fill the chip's.
        inputs = 2.0 * row.microbatch * row.seq * row.model.d_model * row.model.layers / row.devices
        self.offloads = platform == "tpu" and inputs > _OFFLOADED * chip(row.chip).device.hbm_bytes

    def layout(self, x: jax.Array, spec: PartitionSpec) -> jax.Array:
        """Return an array with a layout; within replicas that compute apart, without their axis."""
        if self.replicas:
            spec = P(*(None if part == _BATCH else part for part in spec))
            if all(part is None for part in spec):
                return x
        return jax.lax.with_sharding_constraint(x, NamedSharding(self._inner_mesh(), spec))

    def _inner_mesh(self) -> Any:
        return jax.sharding.get_abstract_mesh() if self.replicas else self.mesh

    # ---- the step

    def step(self, params: Any, mean: Any, square: Any, master: Any, tokens: jax.Array) -> Any:
        """Return new parameters, both states, the optimizer's copy of the parameters if it has one, and the loss."""
        loss, gradients = self.loss_and_gradients(params, tokens)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(g.astype(jnp.float32))) for g in gradients.values()))
        scale = jnp.minimum(1.0, 1.0 / (norm + 1e-6))
        found: Any = ({}, {}, {}, {})
        specs, states = parameter_layouts(self.row, self.layers), state_specs(self.row, self.layers)
        for name, p in params.items():
            with jax.named_scope("optimizer"):
                g = gradients[name].astype(jnp.float32)
                g = jax.lax.with_sharding_constraint(g, NamedSharding(self.mesh, states[name])) * scale
                m = 0.9 * mean[name] + 0.1 * g
                v = 0.95 * square[name] + 0.05 * g * g
                own = jax.lax.with_sharding_constraint(master.get(name, p), NamedSharding(self.mesh, states[name]))
                exact = own - 1e-4 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * own)
                new = jax.lax.with_sharding_constraint(exact.astype(p.dtype), NamedSharding(self.mesh, specs[name][1]))
            kept = mean[name].dtype
            values = (new, m.astype(kept), v.astype(kept), *([exact] if master else []))
            for part, value in zip(found, values, strict=False):
                part[name] = value
        return *found, loss

    def loss_and_gradients(self, params: Any, tokens: jax.Array) -> Any:
        """Return the loss and the gradients, over microbatches one after another."""
        if not self.replicas:
            return self._accumulated(params, tokens)

        def apart(params: Any, tokens: jax.Array) -> Any:
            loss, gradients = self._accumulated(params, tokens)
            # PyTorch reduces gradients in the type in which they are computed.
            kind = jnp.float32 if self.row.fp32_gradients else _HALF
            summed = {name: jax.lax.psum(g.astype(kind), _REPLICAS) for name, g in gradients.items()}
            return jax.lax.pmean(loss, _REPLICAS), summed

        specs = {name: P() for name in params}
        return jax.shard_map(
            apart, mesh=self.mesh, in_specs=(specs, P(None, _REPLICAS)), out_specs=(P(), dict(specs)),
            axis_names=set(_REPLICAS), check_vma=False,
        )(params, tokens)  # fmt: skip

    def _accumulated(self, params: Any, tokens: jax.Array) -> Any:
        value = jax.value_and_grad(self.loss)
        if self.row.accumulate == 1:
            return value(params, tokens[0])
        kept = jnp.float32 if self.row.fp32_gradients or not self.row.bf16_weights else _HALF
        specs = parameter_layouts(self.row, self.layers)

        def one(total: Any, part: jax.Array) -> Any:
            # The barrier ties the weights to the microbatch: else XLA gathers all of them before the first one, and
            # keeps them.
            own, part = jax.lax.optimization_barrier((params, part))
            loss, gradients = value(own, part)
            summed = {name: total[1][name] + g.astype(kept) for name, g in gradients.items()}
            summed = {name: self.layout(g, specs[name][1]) for name, g in summed.items()}
            return (total[0] + loss, summed), None

        zero = {name: jnp.zeros(p.shape, kept) for name, p in params.items()}
        zero = {name: self.layout(z, specs[name][1]) for name, z in zero.items()}
        (loss, gradients), _ = jax.lax.scan(one, (jnp.zeros(()), zero), tokens)
        return loss, gradients

    def loss(self, params: Any, tokens: jax.Array) -> jax.Array:
        """Return the mean loss of the next token."""
        with jax.named_scope("embed"):
            x = self.gathered(params["embedding"], P(None if self.row.fsdp2 else "tp", "fsdp"))[tokens]
            x = self.residual(x)
        block = self.block if self.row.zero2 else self._again(self.block)
        if not self.scans and (self.row.fsdp > 1 or self.row.fsdp2):
            block = _in_turn(block)
        if self.scans:
            stacked = {name: p for name, p in params.items() if name.startswith("block/")}
            x, _ = jax.lax.scan(lambda x, p: (block(x, {k[6:]: v for k, v in p.items()}), None), x, stacked)
        else:
            for number in range(self.layers):
                mark = f"block{number}/"
                own = {name[len(mark) :]: p for name, p in params.items() if name.startswith(mark)}
                if self.row.zero2:
                    own = {name: self.weight(name, p) for name, p in own.items()}
                    x = self._again(functools.partial(self.block, whole=True))(x, own)
                else:
                    x = block(x, own)
        head = params["embedding"].T if self.row.model.tied else params["head"]
        head = self.gathered(head, P("fsdp", "tp"))

        def lost(x: jax.Array, wanted: jax.Array) -> jax.Array:
            logits = self.layout(_norm(x) @ head, P(_BATCH, None, "tp"))
            if self.row.fsdp2:
                logits = self.layout(logits, P(_BATCH, None, None))
            logits = logits.astype(jnp.float32)
            found = jnp.take_along_axis(logits, wanted[..., None], -1)[..., 0]
            return jnp.sum(jax.nn.logsumexp(logits, -1) - found)

        with jax.named_scope("loss"):
            wanted = jnp.roll(tokens, -1, axis=1)
            if self.platform != "tpu":
                return lost(x, wanted) / tokens.size
            # In tiles along the sequence, as recipes for TPUs do: all logits at once would not fit the memory.
            tiles = [jnp.moveaxis(one.reshape(len(one), _TILES, -1, *one.shape[2:]), 1, 0) for one in (x, wanted)]
            total, _ = jax.lax.scan(lambda sum, tile: (sum + jax.checkpoint(lost)(*tile), None), jnp.zeros(()), tiles)
            return total / tokens.size

    def _checkpoint(self, block: Callable[..., Any], **policy: Any) -> Callable[..., Any]:
        # Inside a scan nothing can be merged with the forward pass, and the barrier that forbids it would keep the
        # gathers of the next block from being started early.
        return jax.checkpoint(block, prevent_cse=not self.scans, **policy)

    def _again(self, block: Callable[..., Any]) -> Callable[..., Any]:
        """Return a block that is computed again in the backward pass, as the row says."""
        policies = jax.checkpoint_policies
        if self.row.remat == "full" and self.offloads:
            kept = policies.save_and_offload_only_these_names(
                names_which_can_be_saved=[], names_which_can_be_offloaded=["input"],
                offload_src="device", offload_dst="pinned_host",
            )  # fmt: skip
            return self._checkpoint(block, policy=kept)
        if self.row.remat == "full":
            return self._checkpoint(block)
        if self.row.remat == "save":
            return self._checkpoint(block, policy=policies.save_only_these_names(*_SAVED, "statistics"))
        if self.platform == "tpu":
            return self._checkpoint(block, policy=policies.dots_with_no_batch_dims_saveable)  # MaxText's "minimal"
        # What PyTorch keeps without checkpointing: products and what attention's kernel needs again.
        kept = policies.save_from_both_policies(
            policies.dots_with_no_batch_dims_saveable, policies.save_only_these_names("attended", "statistics")
        )
        return self._checkpoint(block, policy=kept)

    def gathered(self, weight: jax.Array, own: PartitionSpec) -> jax.Array:
        """Return a weight in bfloat16 on every device of its replica: the all-gather of FSDP.

        Args:
            weight: in its own layout.
            own: that layout.
        """
        weight = weight.astype(_HALF)
        if not self.scans:
            # Its own layout once more, where a recomputation or a microbatch begins: else the layout that follows would
            # reach through the barrier there, and what was gathered before it would be kept.
            weight = _apart(self.layout(weight, own))
        return self.layout(weight, P(*("tp" if axis == "tp" else None for axis in own)))

    def weight(self, name: str, weight: jax.Array) -> jax.Array:
        """Return a weight of a block, gathered."""
        if weight.ndim == 1:
            return weight.astype(_HALF)
        return self.gathered(weight, P("tp", "fsdp") if name in ("out", "down") else P("fsdp", "tp"))

    def residual(self, x: jax.Array) -> jax.Array:
        """Return the residual stream in its layout: its sequence or its features over tensor-parallel devices."""
        if self.row.tp == 1:
            return self.layout(x, P(_BATCH, None, None))
        return self.layout(x, P(_BATCH, "tp", None) if self.row.stack == "torch" else P(_BATCH, None, "tp"))

    def block(self, x: jax.Array, p: Any, whole: bool = False) -> jax.Array:
        """Return the residual stream after one block."""
        m = self.row.model
        x = checkpoint_name(x, "input")
        w = (lambda name: p[name]) if whole else (lambda name: self.weight(name, p[name]))
        batch, length = x.shape[:2]
        with jax.named_scope("attention"):
            h = self.layout(_norm(x) * w("norm1"), P(_BATCH, None, None))

            def heads(name: str, count: int) -> jax.Array:
                made = (h @ w(name)).reshape(batch, length, count, m.head_dim)
                return checkpoint_name(self.layout(made, P(_BATCH, None, "tp", None)), name)

            query = heads("query", m.heads)
            key = heads("key", m.kv_heads)
            value = heads("value", m.kv_heads)
            if m.gated:  # rotary positions; models without a gate (MPT, GPT-3) have learned ones
                query, key = _rotary(query), _rotary(key)
            attended = self.attention(query, key, value).reshape(batch, length, m.heads * m.head_dim)
            x = self.residual(x + attended @ w("out"))
        with jax.named_scope("mlp"):
            h = self.layout(_norm(x) * w("norm2"), P(_BATCH, None, None))
            up = h @ w("up")
            hidden = jax.nn.silu(h @ w("gate")) * up if m.gated else jax.nn.gelu(up)
            return self.residual(x + checkpoint_name(hidden @ w("down"), "hidden"))

    def attention(self, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        """Return causal attention by one kernel on each device."""
        kernel = library_kernel if self.platform == "cuda" else functools.partial(splash, self.row)
        spec = P(None if self.replicas else _BATCH, None, "tp", None)
        names = {"tp", "fsdp"} if self.replicas else {*_BATCH, "tp"}
        return jax.shard_map(
            kernel, mesh=self._inner_mesh(), in_specs=(spec,) * 3, out_specs=spec, axis_names=names, check_vma=False
        )(query, key, value)


@jax.custom_vjp
def _apart(x: jax.Array) -> jax.Array:
    """Return an array whose layout is not joined with the one that follows; its gradient passes as it is."""
    return jax.lax.optimization_barrier(x)


_apart.defvjp(lambda x: (_apart(x), None), lambda _, g: (g,))


def _in_turn(block: Callable[..., Any]) -> Callable[..., Any]:
    """Return a block whose backward pass ends before that of the block below begins, as FSDP runs them.

    XLA would put the gradients of all weights off, and keep what they are made of.
    """

    @jax.custom_vjp
    def together(x: Any) -> Any:
        return x

    together.defvjp(lambda x: (x, None), lambda _, g: (jax.lax.optimization_barrier(g),))

    def made(x: jax.Array, own: Any) -> jax.Array:
        return block(*together((x, own)))

    return made


def _norm(x: jax.Array) -> jax.Array:
    """Return features with a mean square of one."""
    size = jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True)
    return (x * jax.lax.rsqrt(size + 1e-5)).astype(x.dtype)


def _rotary(x: jax.Array) -> jax.Array:
    """Return queries or keys turned by their positions."""
    length, half = x.shape[1], x.shape[-1] // 2
    angle = jnp.arange(length)[:, None] / (10000.0 ** (jnp.arange(half) / half))
    cos, sin = (f(angle)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
