"""Models that ``pw.stages`` cuts and ``pw.pipeline`` runs, with dropout and token slices."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import numpy as np
import pytest

import pathways_nb as pw
from tests.support.closeness import close
from tests.support.pipelines import attend, cross_entropy, embed, head, language_model, mlp


def dropping(params: Any, x: Any, key: Any) -> Any:
    return x * jax.random.bernoulli(key, 0.5, x.shape) @ params


def test_blocks_with_a_key_and_a_context_make_stages_that_have_them(controller) -> None:
    model, x, targets = language_model()
    blocks = [embed, lambda params, h: mlp(params, h), lambda params, h, context: attend(params, h, context), head]
    layer = model[0]["block"]
    block_params = [model[0], {name: layer[name] for name in ("up", "down")}, layer, model[1]]
    cut = pw.stages(blocks, 2, params=block_params, x=x)
    assert "estimated" in str(cut)
    on = [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)]
    pipe = pw.pipeline(cut, on=on, schedule="terapipe", microbatches=1, loss=cross_entropy, token_slices=[8, 4])
    params = cut.split(block_params)
    value, gradients = pipe.value_and_grad(params, x, targets)
    expected, exact = jax.jit(jax.value_and_grad(pipe.composed))(params, x, targets)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    close(gradients, exact)


def test_each_block_of_a_stage_has_a_key_of_its_own() -> None:
    (stage,) = pw.stages([dropping, dropping], 1)
    eye, x, key = np.eye(64, dtype=np.float32), np.ones((1, 64), np.float32), jax.random.key(0)
    once = [dropping(eye, x, jax.random.fold_in(key, number)) for number in range(2)]
    np.testing.assert_array_equal(stage([eye, eye], x, key=key), once[0] * once[1])
    with pytest.raises(TypeError, match="key"):
        inspect.signature(stage).bind([eye, eye], x)
