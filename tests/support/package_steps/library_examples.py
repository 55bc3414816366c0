"""Steps that libraries have in their wheels: trainers, and examples that are installed with them."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from tests.support import placed_shapes
from tests.support.package_steps import sources
from tests.support.package_steps.calls import DATA, Call, P, fully_sharded, mesh_of, rows, shape

READERS = ("tensorflow", "tensorflow.compat", "tensorflow.compat.v2", "tensorflow_datasets")
HUBS = (
    "huggingface_hub", "kagglehub", "transformers", "tensorflow", "sentencepiece", "wandb", "datasets", "pandas",
    "grain", "grain.python", "perfetto", "perfetto.trace_builder", "perfetto.trace_builder.proto_builder",
    "perfetto.protos", "perfetto.protos.perfetto", "perfetto.protos.perfetto.trace",
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2",
)  # fmt: skip
"""Modules that load weights and data, or write logs."""


def haiku_rnn() -> Call:
    own = sources.installed("examples.rnn.train", READERS)
    importlib.import_module("absl.flags").FLAGS(["steps"], known_only=True)
    batch = {"input": shape(128, 4096, dtype=jnp.int32), "target": shape(128, 4096, dtype=jnp.int32)}

    def state(batch: Any, seed: Any) -> Any:
        params = own.hk.without_apply_rng(own.hk.transform(own.sequence_loss)).init(seed, batch)
        return own.TrainingState(params, own.make_optimizer().init(params))

    made = jax.eval_shape(state, batch, jax.random.key(0))
    return Call(own.update, (fully_sharded(made), placed_shapes.on(DATA, batch, P(None, "data"))))


def haiku_transformer() -> Call:
    own = sources.installed("examples.transformer.train", READERS)
    batch = own.dataset.Batch(inputs=shape(4096, 64, dtype=jnp.int32), targets=shape(4096, 64, dtype=jnp.int32))
    state = jax.eval_shape(own.init, jax.eval_shape(lambda: jax.random.PRNGKey(0)), batch)
    return Call(own.update, (fully_sharded(state), placed_shapes.on(DATA, batch, P("data"))))


def tunix_lora() -> Call:
    """Llama 3.2 1B with two layers: LoRA of Qwix, gradients accumulated by ``optax.MultiSteps``."""
    llama = sources.installed("tunix.models.llama3.model", HUBS)
    trainers = sources.installed("tunix.sft.peft_trainer", HUBS)
    qwix = sources.installed("qwix", ())
    mesh = mesh_of("fsdp")
    config = dataclasses.replace(llama.ModelConfig.llama3p2_1b(), num_layers=2)
    lora = qwix.LoraProvider(module_path=".*q_proj|.*kv_proj|.*gate_proj|.*down_proj|.*up_proj", rank=16, alpha=2.0)
    settings = trainers.TrainingConfig(eval_every_n_steps=1, max_steps=1, gradient_accumulation_steps=4)
    trainer = None

    def make() -> Any:
        nonlocal trainer
        base = llama.Llama3(config, rngs=nnx.Rngs(0))
        model = qwix.apply_lora_to_model(base, lora, rngs=nnx.Rngs(0), **base.get_model_input())
        trainer = trainers.PeftTrainer(model, optax.adamw(1e-4), settings)
        return model, trainer.optimizer

    model, optimizer = fully_sharded(nnx.eval_shape(make), mesh)
    assert trainer is not None
    inputs = {
        "input_tokens": rows(64, 1024, dtype=jnp.int32, mesh=mesh),
        "input_mask": rows(64, 1024, dtype=jnp.bool_, mesh=mesh),
        "positions": rows(64, 1024, dtype=jnp.int32, mesh=mesh),
        "attention_mask": rows(64, 1024, 1024, dtype=jnp.bool_, mesh=mesh),
    }
    # The trainer jits it on its first call, which is bound to a model with arrays.
    step = nnx.jit(trainer.create_train_step_fn(), donate_argnames=("optimizer",))
    return Call(step, (model, optimizer, inputs))


def numpyro_svi() -> Call:
    """Variational inference; the model is ours, as in any use of it."""
    numpyro = sources.installed("numpyro", ())
    guides = sources.installed("numpyro.infer.autoguide", ())
    normal, bernoulli = numpyro.distributions.Normal, numpyro.distributions.Bernoulli

    def model(x: Any, y: Any) -> None:
        weights = numpyro.sample("weights", normal(jnp.zeros(4096), 1).to_event(1))
        numpyro.sample("y", bernoulli(logits=x @ weights), obs=y)

    infer = sources.installed("numpyro.infer", ())
    svi = infer.SVI(model, guides.AutoNormal(model), numpyro.optim.Adam(1e-3), infer.Trace_ELBO())
    data = shape(65536, 4096), shape(65536, dtype=jnp.int32)
    state = jax.eval_shape(lambda x, y: svi.init(jax.random.PRNGKey(0), x, y), *data)
    return Call(jax.jit(svi.update), (state, *placed_shapes.on(DATA, data, P("data"))))
