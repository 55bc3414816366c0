"""Random training steps against plain JAX: each agrees with the whole batch, or is refused.

``python -m tests.jax.batch_walk.random_steps --count 300 --seed 0`` tries many. A step is a random loss, right or not,
with sharded data parallelism in any mode, in a pipeline with any schedule, or with token slices of a small transformer
whose attention is right or not.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import pathways_nb as pw
from tests.jax.batch_walk.losses import (
    CLASSES,
    FEATURES,
    RIGHT,
    UNKNOWN,
    UNKNOWN_BUT_RIGHT,
    WRONG,
    WRONG_GRADIENTS,
    data,
)
from tests.support.closeness import error
from tests.support.pipelines import HEADS, WORDS, D, block_params, mlp, normal

LOSSES = RIGHT | WRONG | WRONG_GRADIENTS | UNKNOWN | {"sorted and averaged": UNKNOWN_BUT_RIGHT["sorted and averaged"]}
del LOSSES["as many turns as rows"]  # which JAX cannot differentiate
MODES = ("ddp", "zero1", "zero2", "zero3", "hsdp")
SCHEDULES = ("gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "zb-v")
Pick = np.random.Generator


class Outcome(NamedTuple):
    """How a step ended.

    Args:
        what: which step.
        ended: ``"agreed"``, ``"refused"`` or ``"differed"``.
        wrong: whether the loss of the parts really is another than that of the whole.
        text: of the error, or how large the difference is.
    """

    what: str
    ended: str
    wrong: bool
    text: str


def random_loss(pick: Pick) -> tuple[str, Any]:
    """One loss, or a random sum of two, which may cancel no error of the other."""
    names = [str(name) for name in pick.choice(list(LOSSES), 2)]
    if pick.random() < 0.6:
        return names[0], LOSSES[names[0]]
    share = float(pick.uniform(0.2, 2))

    def both(w: Any, x: Any, y: Any) -> Any:
        return LOSSES[names[0]](w, x, y) + share * LOSSES[names[1]](w, x, y)

    return " + ".join(names), both


def random_step(seed: int) -> Outcome:
    """Try one step."""
    pick = np.random.default_rng(seed)
    kind = str(pick.choice(["fsdp", "pipeline", "tokens"], p=[0.4, 0.35, 0.25]))
    what, run, wrong = {"fsdp": _fsdp, "pipeline": _pipeline, "tokens": _tokens}[kind](pick)
    what = f"{seed} {kind} {what}"
    try:
        found, expected = run()
    except pw.UsageError as refused:
        return Outcome(what, "refused", wrong, str(refused))
    far = error(found, expected)
    return Outcome(what, "agreed" if far <= 1e-3 else "differed", wrong, f"{far:.1e}")


def _is_wrong(name: str) -> bool:
    return any(part in WRONG | WRONG_GRADIENTS | UNKNOWN for part in name.split(" + "))


Try = tuple[str, Callable[[], tuple[Any, Any]], bool]


def _fsdp(pick: Pick) -> Try:
    name, loss = random_loss(pick)
    mode, accumulate, count = str(pick.choice(MODES)), int(pick.choice([1, 2])), int(pick.choice([2, 4]))
    w, x, y = data(int(pick.integers(100)))

    def run() -> tuple[Any, Any]:
        place = pw.virtual_slice((count // 2, 2), axes=("r", "s")) if mode == "hsdp" else pw.virtual_slice(count)
        step = pw.fsdp(loss, w, on=place, mode=mode, accumulate=accumulate)
        value, gradients = step.value_and_grad(step.init(w), x, y)
        return (value, step.whole(gradients)), jax.value_and_grad(loss)(w, x, y)

    return f"{mode} × {accumulate} on {count}: {name}", run, _is_wrong(name)


def _pipeline(pick: Pick) -> Try:
    name, loss = random_loss(pick)
    schedule, microbatches = str(pick.choice(SCHEDULES)), int(pick.choice([2, 4]))
    fsdp = [None, "ddp", "zero3"][int(pick.integers(3))]
    spec = pw.P("x") if fsdp is None and pick.random() < 0.5 else None
    _, x, y = data(int(pick.integers(100)))
    stages = 4 if schedule in ("interleaved-1f1b", "zb-v") else 2
    params = [normal(pick, FEATURES, FEATURES) for _ in range(stages - 1)] + [normal(pick, FEATURES, FEATURES)]

    def body(w: Any, x: Any) -> Any:
        return x + jnp.tanh(x @ w)

    def head(w: Any, x: Any) -> Any:
        return x @ w

    def of_head(h: Any, targets: Any) -> Any:
        return loss(jnp.eye(FEATURES, dtype=h.dtype)[:, :CLASSES], h, targets)

    def run() -> tuple[Any, Any]:
        on = [pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)]
        pipe = pw.pipeline([body] * (stages - 1) + [head], on=on, schedule=schedule, microbatches=microbatches,
                           loss=of_head, fsdp=fsdp, data_sharding=spec)  # fmt: skip
        return pipe.value_and_grad(params, x, y), jax.value_and_grad(pipe.composed)(params, x, y)

    return f"{schedule} × {microbatches} fsdp={fsdp} {spec}: {name}", run, _is_wrong(name)


def _tokens(pick: Pick) -> Try:
    mask = str(
        pick.choice(
            ["right", "bias", "window", "none", "tril", "later", "own window"], p=[0.35, 0.15, 0.1, 0.1, 0.1, 0.1, 0.1]
        )
    )
    place = str(pick.choice(["right", "arange"], p=[0.8, 0.2]))
    of_loss = str(
        pick.choice(["mean", "masked", "shifted", "last", "sum", "divided"], p=[0.4, 0.3, 0.1, 0.05, 0.05, 0.1])
    )
    slices = [[6, 6], [5, 4, 3], [2, 8, 2], [4, 4, 4]][int(pick.integers(4))]
    microbatches, schedule = int(pick.choice([1, 2])), str(pick.choice(["terapipe", "seq1f1b"]))
    first = {"table": normal(pick, WORDS, D), "positions": normal(pick, 12, D), "block": block_params(pick)}
    params = [first, {"block": block_params(pick), "head": normal(pick, D, WORDS)}]
    x, targets = (pick.integers(0, WORDS, (4, 12)).astype(np.int32) for _ in range(2))

    def run() -> tuple[Any, Any]:
        on = [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)]
        pipe = pw.pipeline(_stages(mask, place), on=on, schedule=schedule, microbatches=microbatches,
                           token_slices=slices, loss=TOKEN_LOSSES[of_loss])  # fmt: skip
        return pipe.value_and_grad(params, x, targets), jax.value_and_grad(pipe.composed)(params, x, targets)

    wrong = mask in ("none", "tril", "later", "own window") or place == "arange" or of_loss not in ("mean", "masked")
    return f"{schedule} × {microbatches} {slices}, mask {mask}, positions {place}: {of_loss}", run, wrong


def _stages(mask: str, place: str) -> list[Any]:
    def masked(context: pw.Context, scores: Any) -> Any:
        within, read = context.mask, jnp.arange(context.width)[None]
        if mask == "none":
            return scores
        if mask == "bias":
            return scores + jnp.where(within, 0.0, -1e9)
        chosen = {"right": within, "window": within & (context.positions[:, None] - read < 3),
                  "tril": jnp.tril(jnp.ones((context.tokens, context.width), bool)),
                  "own window": within & (jnp.arange(context.tokens)[:, None] - read < 3),
                  "later": read >= context.positions[:, None]}[mask]  # fmt: skip
        return jnp.where(chosen, scores, -1e30)

    def attend(params: Any, h: Any, context: pw.Context) -> Any:
        q, k, v = (jnp.einsum("bld,dhe->blhe", h, params[name]) for name in "qkv")
        keys, values = context.append(k, v)
        scores = masked(context, jnp.einsum("blhe,bmhe->bhlm", q, keys) / (D // HEADS) ** 0.5)
        mixed = jnp.einsum("bhlm,bmhe->blhe", jax.nn.softmax(scores), values)
        return mlp(params, h + jnp.einsum("blhe,hed->bld", mixed, params["o"]))

    def embed(params: Any, x: Any, context: pw.Context) -> Any:
        at = context.positions if place == "right" else jnp.arange(context.tokens)
        return attend(params["block"], params["table"][x] + params["positions"][at], context)

    def head(params: Any, h: Any, context: pw.Context) -> Any:
        return attend(params["block"], h, context) @ params["head"]

    return [embed, head]


def _of_tokens(y: Any, targets: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(y), targets[..., None], -1)[..., 0]


TOKEN_LOSSES: dict[str, Any] = {
    "mean": lambda y, t: _of_tokens(y, t).mean(),
    "masked": lambda y, t: pw.mean((_of_tokens(y, t) * (t > 3)).sum(), (t > 3).sum()),
    "divided": lambda y, t: (_of_tokens(y, t) * (t > 3)).sum() / (t > 3).sum(),
    "shifted": lambda y, t: _of_tokens(y[:, :-1], t[:, 1:]).mean(),
    "last": lambda y, t: _of_tokens(y[:, -1:], t[:, -1:]).mean(),
    "sum": lambda y, t: _of_tokens(y, t).sum(1).mean(),
}


def main() -> None:
    """Try random steps and print how they ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    ended = Counter[str]()
    with pw.attach("cpu", islands=2, devices_per_island=4):
        for seed in range(given.seed, given.seed + given.count):
            outcome = random_step(seed)
            ended[outcome.ended if outcome.ended != "refused" or outcome.wrong else "refused though right"] += 1
            if outcome.ended == "differed" or (outcome.ended == "refused" and not outcome.wrong):
                print(outcome, flush=True)
    print(dict(ended))
    raise SystemExit(ended["differed"] > 0)


if __name__ == "__main__":
    main()
