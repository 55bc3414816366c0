"""Training steps of any depth whose blocks a loop in Python writes, in the ways in which people write them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Made = tuple[Callable[..., Any], tuple[Any, ...]]
"""A step, and its arguments."""
D, HEADS, KV, SIZE, FF, VOCAB, SEQ = 16, 4, 2, 4, 24, 32, 8


def weights(rng: np.random.Generator, **shapes: tuple[int, ...]) -> dict[str, Any]:
    return {name: jnp.asarray(rng.normal(size=shape) * 0.3, jnp.float32) for name, shape in shapes.items()}


def llama_block(rng: np.random.Generator) -> dict[str, Any]:
    wide, narrow = HEADS * SIZE, KV * SIZE
    return weights(
        rng, q=(D, wide), k=(D, narrow), v=(D, narrow), o=(wide, D), gate=(D, FF), up=(D, FF), down=(FF, D),
        norm1=(D,), norm2=(D,),
    )  # fmt: skip


def norm(x: Any, w: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * w


def rotate(x: Any, tables: Any) -> Any:
    a, b = jnp.split(x, 2, -1)
    return x * tables[0] + jnp.concatenate([-b, a], -1) * tables[1]


def attention(p: Any, x: Any, tables: Any, mask: Any) -> Any:
    def heads(name: str, count: int) -> Any:
        return (x @ p[name]).reshape(*x.shape[:2], count, SIZE)

    q, k = rotate(heads("q", HEADS), tables), rotate(heads("k", KV), tables)
    k, v = (jnp.repeat(one, HEADS // KV, 2) for one in (k, heads("v", KV)))
    scores = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9)
    out = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)
    return out.reshape(*x.shape[:2], -1) @ p["o"]


def llama_layer(p: Any, x: Any, tables: Any, mask: Any) -> Any:
    x = x + attention(p, norm(x, p["norm1"]), tables, mask)
    h = norm(x, p["norm2"])
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


def causal(window: int = SEQ) -> Any:
    at = jnp.arange(SEQ)
    return (at[:, None] >= at[None]) & (at[:, None] - at[None] < window)


def tables_of(seq: int) -> Any:
    angle = jnp.arange(seq)[:, None] * (1e-2 ** (jnp.arange(SIZE // 2) / SIZE))
    angle = jnp.concatenate([angle, angle], -1)[:, None]
    return jnp.cos(angle), jnp.sin(angle)


def params_of(n: int, block: Callable[[np.random.Generator], Any] = llama_block, tied: bool = False) -> Any:
    rng = np.random.default_rng(n)
    found = {"blocks": [block(rng) for _ in range(n)], **weights(rng, embed=(VOCAB, D), norm=(D,))}
    return found if tied else found | weights(rng, head=(D, VOCAB))


def tokens_of(*shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(7).integers(0, VOCAB, shape))


def nll(params: Any, x: Any, tokens: Any) -> Any:
    head = params["head"] if "head" in params else params["embed"].T
    logits = norm(x, params["norm"]) @ head
    logits = logits.astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.roll(tokens, -1, 1)).mean()


def llama_loss(params: Any, tokens: Any, layer: Any = llama_layer) -> Any:
    tables, mask = tables_of(SEQ), causal()
    x = params["embed"][tokens]
    for p in params["blocks"]:
        x = layer(p, x, tables, mask)
    return nll(params, x, tokens)


def descend(params: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def plain_step(loss: Any) -> Any:
    def step(params: Any, tokens: Any) -> Any:
        lost, gradients = jax.value_and_grad(loss)(params, tokens)
        return descend(params, gradients), lost

    return step


def trained(params: Any, tokens: Any, loss: Any, optimizer: Any) -> Made:
    def step(params: Any, state: Any, tokens: Any) -> Any:
        lost, gradients = jax.value_and_grad(loss)(params, tokens)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, {"loss": lost, "norm": optax.tree.norm(gradients)}

    return step, (params, optimizer.init(params), tokens)


def mlp(n: int) -> Made:
    def loss(params: Any, x: Any) -> Any:
        for p in params:
            x = jnp.tanh(x @ p["a"] + p["b"])
        return (x**2).mean()

    rng = np.random.default_rng(n)
    params = [weights(rng, a=(D, D), b=(D,)) for _ in range(n)]
    return plain_step(loss), (params, weights(rng, x=(4, D))["x"])


def llama(n: int) -> Made:
    return plain_step(llama_loss), (params_of(n), tokens_of(2, SEQ))


def checkpointed(policy: Any, n: int) -> Made:
    def loss(params: Any, tokens: Any) -> Any:
        return llama_loss(params, tokens, jax.checkpoint(llama_layer, policy=policy))

    return plain_step(loss), (params_of(n), tokens_of(2, SEQ))


def jitted_blocks(n: int) -> Made:
    layer = jax.jit(llama_layer)
    return plain_step(lambda p, t: llama_loss(p, t, layer)), (params_of(n), tokens_of(2, SEQ))


def jitted_loss(n: int) -> Made:
    return plain_step(jax.jit(llama_loss)), (params_of(n), tokens_of(2, SEQ))


def jitted_step(n: int) -> Made:
    step, args = adamw(n)
    return jax.jit(step, donate_argnums=(0, 1)), args


def tied(n: int) -> Made:
    return plain_step(llama_loss), (params_of(n, tied=True), tokens_of(2, SEQ))


def adamw(n: int) -> Made:
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return trained(params_of(n), tokens_of(2, SEQ), llama_loss, optimizer)


def masked_adamw(n: int) -> Made:
    def decays(params: Any) -> Any:
        return jax.tree.map(lambda p: p.ndim > 1, params)

    return trained(params_of(n), tokens_of(2, SEQ), llama_loss, optax.adamw(1e-3, mask=decays))


def accumulated(n: int) -> Made:
    def step(params: Any, batches: Any) -> Any:
        total = jax.tree.map(jnp.zeros_like, params)
        lost = 0.0
        for tokens in batches:
            one, gradients = jax.value_and_grad(llama_loss)(params, tokens)
            total, lost = jax.tree.map(jnp.add, total, gradients), lost + one
        return descend(params, total), lost

    return step, (params_of(n), tokens_of(3, 2, SEQ))


def scanned_microbatches(n: int) -> Made:
    def step(params: Any, batches: Any) -> Any:
        def one(total: Any, tokens: Any) -> Any:
            lost, gradients = jax.value_and_grad(llama_loss)(params, tokens)
            return (jax.tree.map(jnp.add, total[0], gradients), total[1] + lost), None

        zero = jax.tree.map(jnp.zeros_like, params), jnp.zeros(())
        (total, lost), _ = jax.lax.scan(one, zero, batches)
        size = optax.tree.norm(total)
        return descend(params, jax.tree.map(lambda g: g / jnp.maximum(1.0, size), total)), lost, size

    return step, (params_of(n), tokens_of(3, 2, SEQ))


def constrained(n: int) -> Made:
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))

    def layer(p: Any, x: Any, *shared: Any) -> Any:
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("d")))
        return llama_layer(p, x, *shared)

    return plain_step(lambda p, t: llama_loss(p, t, layer)), (params_of(n), tokens_of(2, SEQ))


def per_shard(n: int) -> Made:
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))

    def step(params: Any, tokens: Any) -> Any:
        def apart(params: Any, tokens: Any) -> Any:
            lost, gradients = jax.value_and_grad(llama_loss)(params, tokens)
            return jax.lax.pmean(lost, "d"), jax.tree.map(lambda g: jax.lax.pmean(g, "d"), gradients)

        lost, gradients = jax.shard_map(
            apart, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=False
        )(params, tokens)  # fmt: skip
        return descend(params, gradients), lost

    return step, (params_of(n), tokens_of(2, SEQ))


def alternating(n: int) -> Made:
    """Local and global attention in turn: of ``2 * n`` layers."""

    def loss(params: Any, tokens: Any) -> Any:
        tables, masks = tables_of(SEQ), (causal(3), causal())
        x = params["embed"][tokens]
        for number, p in enumerate(params["blocks"]):
            x = llama_layer(p, x, tables, masks[number % 2])
        return nll(params, x, tokens)

    return plain_step(loss), (params_of(2 * n), tokens_of(2, SEQ))


def first_differs(n: int) -> Made:
    """A first block that is a single product."""

    def loss(params: Any, tokens: Any) -> Any:
        x = jnp.tanh(params["embed"][tokens] @ params["first"])
        for p in params["blocks"]:
            x = llama_layer(p, x, tables_of(SEQ), causal())
        return nll(params, x, tokens)

    rng = np.random.default_rng(1)
    return plain_step(loss), (params_of(n) | weights(rng, first=(D, D)), tokens_of(2, SEQ))


def experts(p: Any, x: Any) -> tuple[Any, Any]:
    chances = jax.nn.softmax(x @ p["router"], -1)
    out = jnp.einsum("bsd,edf,bse->bsf", x, p["experts"], chances)
    return x + out, jnp.square(chances.mean((0, 1))).sum()


def expert_block(rng: np.random.Generator) -> Any:
    return {"dense": llama_block(rng), **weights(rng, router=(D, 3), experts=(3, D, D))}


def mixture(n: int, summed: bool = True) -> Made:
    """Experts in every other layer; the routers' losses are added up, or stacked."""

    def loss(params: Any, tokens: Any) -> Any:
        x, extra = params["embed"][tokens], []
        for p in params["blocks"]:
            x = llama_layer(p["dense"], x, tables_of(SEQ), causal())
            x, one = experts(p, x)
            extra.append(one)
        more = sum(extra) if summed else jnp.stack(extra).mean()
        return nll(params, x, tokens) + 0.01 * more

    return plain_step(loss), (params_of(n, expert_block), tokens_of(2, SEQ))


def cast_up_front(n: int) -> Made:
    def loss(params: Any, tokens: Any) -> Any:
        half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        return llama_loss(half, tokens, lambda p, x, *shared: llama_layer(p, x, *shared).astype(x.dtype))

    return plain_step(loss), (params_of(n), tokens_of(2, SEQ))


def dropout(n: int) -> Made:
    def loss(params: Any, tokens: Any) -> Any:
        x, key = params["embed"][tokens], jax.random.key(0)
        for number, p in enumerate(params["blocks"]):
            x = llama_layer(p, x, tables_of(SEQ), causal())
            x = x * jax.random.bernoulli(jax.random.fold_in(key, number), 0.9, x.shape)
        return nll(params, x, tokens)

    return plain_step(loss), (params_of(n), tokens_of(2, SEQ))


def kinds_apart(n: int) -> Made:
    """Parameters by kind, each a list over the blocks; the norm goes over kinds first."""
    params = params_of(n)
    blocks = params.pop("blocks")
    params = {"kinds": {kind: [block[kind] for block in blocks] for kind in blocks[0]}, **params}

    def loss(params: Any, tokens: Any) -> Any:
        blocks = [dict(zip(params["kinds"], one, strict=True)) for one in zip(*params["kinds"].values(), strict=True)]
        return llama_loss({**params, "blocks": blocks}, tokens)

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, 0.9))
    return trained(params, tokens_of(2, SEQ), loss, optimizer)


def named_blocks(n: int) -> Made:
    """Blocks by name, so that ``block10`` comes before ``block2``."""
    params = params_of(n)
    blocks = params.pop("blocks")
    params |= {f"block{number:x}" if number < 10 else f"block1{number % 10}": p for number, p in enumerate(blocks)}

    def loss(params: Any, tokens: Any) -> Any:
        names = sorted((name for name in params if name.startswith("block")), key=lambda name: int(name[5:]))
        return llama_loss({**params, "blocks": [params[name] for name in names]}, tokens)

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, 0.9))
    return trained(params, tokens_of(2, SEQ), loss, optimizer)


def forward_only(n: int) -> Made:
    def forward(params: Any, tokens: Any) -> Any:
        return (llama_loss(params, tokens),)

    return forward, (params_of(n), tokens_of(2, SEQ))


policies = jax.checkpoint_policies
SHORTENED: dict[str, Callable[[int], Made]] = {
    "MLP": mlp,
    "Llama": llama,
    "Llama, forward": forward_only,
    "full recomputation": functools.partial(checkpointed, None),
    "products are saved": functools.partial(checkpointed, policies.dots_with_no_batch_dims_saveable),
    "everything is saved": functools.partial(checkpointed, policies.everything_saveable),
    "blocks are jitted": jitted_blocks,
    "the loss is jitted": jitted_loss,
    "the step is jitted": jitted_step,
    "tied embeddings": tied,
    "AdamW, clipped": adamw,
    "AdamW, some weights decay": masked_adamw,
    "a loop over microbatches": accumulated,
    "a scan over microbatches": scanned_microbatches,
    "constraints on layouts": constrained,
    "a shard_map around": per_shard,
    "local and global attention": alternating,
    "another first block": first_differs,
    "experts, losses of all routers": mixture,
    "cast up front": cast_up_front,
    "parameters by kind": kinds_apart,
    "blocks by name": named_blocks,
}
"""Steps of ``n`` blocks that can be shortened, by name."""
