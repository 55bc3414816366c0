"""Flax's examples and notebooks, from its source distribution: what each needs to be called with shapes."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.linen import partitioning
from jax.sharding import AxisType, NamedSharding

from tests.support import placed_shapes
from tests.support.package_steps import sources
from tests.support.package_steps.calls import (
    FLAX,
    Call,
    P,
    flax_example,
    fully_sharded,
    key,
    mesh_of,
    rows,
    shape,
    whole,
)

READERS = (
    "tensorflow", "tensorflow_datasets", "input_pipeline", "sklearn", "sklearn.metrics", "flax.metrics.tensorboard",
    "flax.training.checkpoints", "clu.metric_writers", "clu.periodic_actions", "clu.parameter_overview",
    "clu.checkpoint",
)  # fmt: skip
"""Modules that read data, write logs or checkpoints: none of them is part of a step."""
IMPORTED = {"jax": jax, "jnp": jnp, "nnx": nnx, "optax": optax, "partial": functools.partial, "P": P}
"""What the first cell of each notebook imports."""


def mnist() -> Call:
    own = sources.module(flax_example("mnist/train.py"), READERS)
    model = own.CNN(rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3, 0.9), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    batch = {"image": rows(4096, 28, 28, 1), "label": rows(4096, dtype=jnp.int32)}
    return Call(own.train_step, (model, optimizer, metrics, batch, nnx.Rngs(0)))


def seq2seq() -> Call:
    own = sources.module(flax_example("seq2seq/train.py"), [name for name in READERS if name != "input_pipeline"])
    model = own.models.Seq2seq(teacher_force=True, hidden_size=512, eos_id=1, vocab_size=15)

    def state(seed: Any) -> Any:
        made = model.init({"params": seed, "lstm": seed}, jnp.ones((1, 10, 15)), jnp.ones((1, 6, 15)))
        return own.train_state.TrainState.create(apply_fn=model.apply, params=made["params"], tx=optax.adam(3e-3))

    batch = {"query": rows(8192, 10, 15), "answer": rows(8192, 6, 15)}
    return Call(own.train_step, (fully_sharded(jax.eval_shape(state, jax.random.key(0))), batch, key(), 1))


def sst2() -> Call:
    own = sources.module(flax_example("sst2/train.py"), READERS)
    config = sources.module(flax_example("sst2/configs/default.py")).get_config()
    config.vocab_size = 16384
    model = own.model_from_config(config)
    state = jax.eval_shape(lambda seed: own.create_train_state(seed, config, model), jax.random.key(0))
    batch = {"token_ids": rows(4096, 60, dtype=jnp.int32), "length": rows(4096, dtype=jnp.int32), "label": rows(4096)}
    keys = {"dropout": key(), "word_dropout": key()}
    return Call(jax.jit(own.train_step), (fully_sharded(state), batch, keys))


def ppo() -> Call:
    own = sources.module(flax_example("ppo/ppo_lib.py"), (*READERS, "test_episodes", "env_utils"))
    config = sources.module(flax_example("ppo/configs/default.py")).get_config()
    model = own.models.ActorCritic(num_outputs=4)
    params = jax.eval_shape(lambda seed: own.get_initial_params(seed, model), jax.random.key(0))
    state = jax.eval_shape(lambda params: own.create_train_state(params, model, config, 1000), params)
    number = 4 * 8192
    played = rows(number, 84, 84, 4), rows(number, dtype=jnp.int32), *(rows(number) for _ in range(3))
    settings = {"clip_param": 0.1, "vf_coeff": 0.5, "entropy_coeff": 0.01}
    return Call(own.train_step, (fully_sharded(state), played, 8192), settings)


def molpcba() -> Call:
    own = sources.module(flax_example("ogbg_molpcba/train.py"), READERS)
    config = sources.module(flax_example("ogbg_molpcba/configs/default.py")).get_config()
    net = own.create_model(config, deterministic=False)

    def graphs(put: Any) -> Any:
        whole_number = functools.partial(put, dtype=jnp.int32)
        return own.jraph.GraphsTuple(
            nodes=put(2**17, 9), edges=put(2**18, 3), senders=whole_number(2**18), receivers=whole_number(2**18),
            n_node=whole_number(4096), n_edge=whole_number(4096), globals=put(4096, 128),
        )  # fmt: skip

    def state(graphs: Any, seed: Any) -> Any:
        params = net.init({"params": seed, "dropout": seed}, own.replace_globals(graphs))
        return own.train_state.TrainState.create(apply_fn=net.apply, params=params, tx=own.create_optimizer(config))

    made = jax.eval_shape(state, graphs(shape), jax.random.key(0))
    return Call(own.train_step, (fully_sharded(made), graphs(rows), {"dropout": key()}))


def imagenet() -> Call:
    """ResNet-50, written for ``pmap``: its ``lax.pmean`` needs an axis, so it goes into a ``shard_map``."""
    own = sources.module(flax_example("imagenet/train.py"), READERS)
    config = sources.module(flax_example("imagenet/configs/default.py")).get_config()
    model = own.create_model(model_cls=own.models.ResNet50, half_precision=False)
    rate = own.create_learning_rate_fn(config, 0.1, 1000)

    def state(seed: Any) -> Any:
        made = model.init({"params": seed}, jnp.ones((1, 224, 224, 3)))
        return own.TrainState.create(
            apply_fn=model.apply, params=made["params"], tx=optax.sgd(rate, 0.9, nesterov=True),
            batch_stats=made["batch_stats"], dynamic_scale=None,
        )  # fmt: skip

    def step(mesh: Any) -> Any:
        inside = functools.partial(own.train_step, learning_rate_fn=rate)
        return jax.jit(jax.shard_map(inside, mesh=mesh, in_specs=(P(), P("batch")), out_specs=P(), check_vma=False))

    mesh = mesh_of("batch")
    batch = {"image": rows(4096, 224, 224, 3, mesh=mesh), "label": rows(4096, dtype=jnp.int32, mesh=mesh)}
    return Call(step, (whole(jax.eval_shape(state, jax.random.key(0)), mesh), batch))


def imagenet_pmap() -> Call:
    own = sources.module(flax_example("imagenet/train.py"), READERS)
    step = jax.pmap(functools.partial(own.train_step, learning_rate_fn=lambda step: 0.1), axis_name="batch")
    return Call(step, imagenet().args)


def lm1b() -> Call:
    """A transformer with logical axis rules, in a mesh's context; its jit stands inside of a function."""
    own = sources.module(flax_example("lm1b/train.py"), (*READERS, "tokenizer"))
    config = sources.module(flax_example("lm1b/configs/default.py")).get_config()
    mesh = mesh_of(*config.mesh_axes)
    wide = own.models.TransformerConfig(
        vocab_size=config.vocab_size, output_vocab_size=config.vocab_size, dtype=jnp.bfloat16
    )
    rate = own.create_learning_rate_schedule(learning_rate=config.learning_rate, warmup_steps=config.warmup_steps)
    optimizer = optax.adamw(rate, b1=0.9, b2=0.98, eps=1e-9, weight_decay=config.weight_decay)
    model = own.models.TransformerLM(wide.replace(deterministic=True))
    make = functools.partial(own.utils.init_train_state, model, optimizer, config)
    state = jax.eval_shape(make, jax.random.PRNGKey(0))
    layouts = nn.logical_to_mesh_sharding(nn.get_partition_spec(state), mesh, config.logical_axis_rules)
    step = jax.jit(
        own.train_step, in_shardings=(layouts, NamedSharding(mesh, P(*config.data_sharding)), None),
        out_shardings=(layouts, None), static_argnums=(2, 3, 4), donate_argnums=0,
    )  # fmt: skip
    names = ("inputs", "inputs_position", "inputs_segmentation")
    batch = {name: shape(1024, config.max_target_length, dtype=jnp.int32) for name in names}
    around = (
        lambda: jax.sharding.use_abstract_mesh(mesh),
        lambda: partitioning.axis_rules(config.logical_axis_rules),
    )
    plain = own.utils.unbox_logicallypartioned_trainstate(state)
    return Call(step, (plain, batch, wide, rate, 0.0, jax.eval_shape(lambda: jax.random.PRNGKey(0))), {}, around)


def diffusion() -> Call:
    own = sources.cells(FLAX / "docs_nnx/examples/digits_diffusion_model.ipynb", [11, 9, 13, 16, 17, 18, 19],
                        **IMPORTED)  # fmt: skip
    model, optimizer = (fully_sharded(own[name]) for name in ("model", "optimizer"))
    return Call(own["train_step"], (model, rows(4096, 8, 8, 1), own["rngs"], optimizer))


def minigpt() -> Call:
    """A GPT with explicit axes, in a mesh's context."""
    mesh = mesh_of("batch", "model", kind=AxisType.Explicit)
    here = jax.make_mesh((1, 1), mesh.axis_names, devices=jax.devices("cpu")[:1])
    with jax.set_mesh(here):
        own = sources.cells(FLAX / "docs_nnx/examples/minigpt.ipynb", [13, 14, 15, 17, 21, 23, 24], **IMPORTED,
                            reshard=jax.sharding.reshard, tokenizer=SimpleNamespace(n_vocab=50257))  # fmt: skip
    tokens = own["batch_size"] * 4, own["maxlen"]
    batch = (placed_shapes.on(mesh, shape(*tokens, dtype=jnp.int32), P("batch", None)),) * 2
    return Call(own["train_step"], (own["model"], own["optimizer"], own["metrics"], batch), {},
                (lambda: jax.sharding.use_abstract_mesh(mesh),))  # fmt: skip


def gspmd_guide() -> Call:
    """Layers scanned over, in a mesh's context; the cell trains it here for five steps first."""
    mesh = jax.make_mesh((1, 1), ("data", "model"), (AxisType.Auto,) * 2, devices=jax.devices("cpu")[:1])
    own = sources.cells(FLAX / "docs_nnx/guides/flax_gspmd.ipynb", [18, 20], **IMPORTED, auto_mesh=mesh,
                        rngs=nnx.Rngs(0))  # fmt: skip
    return Call(own["train_step"], (own["model"], own["optimizer"], own["input"], own["label"]), {},
                (lambda: jax.set_mesh(mesh),))  # fmt: skip


def vision_transformer() -> Call:
    """ViT-B/16, with the configuration that leaves layouts to the compiler."""
    own = sources.cells(FLAX / "docs_nnx/examples/vit_training.ipynb", [2, 4, 28, 30])

    def made() -> Any:
        model = own["VisionTransformer"](own["ModelConfig"](), rngs=nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.sgd(0.001, 0.8, nesterov=True), wrt=nnx.Param)

    model, optimizer = (fully_sharded(one) for one in nnx.eval_shape(made))
    batch = rows(4096, 224, 224, 3, dtype=jnp.bfloat16), rows(4096, dtype=jnp.int32)
    return Call(own["train_step"], (model, optimizer, nnx.Rngs(12), batch))
