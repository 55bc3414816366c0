"""A program without some of its blocks computes what the model of fewer blocks does, or it is left as it is."""

from __future__ import annotations

import random

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest

from pathways_nb.cost.hlo.buffers import Buffers, BufferValue, LiveRange, LiveRanges
from pathways_nb.cost.launch.block_extrapolation import HeldBuffers, extended, extended_bytes
from pathways_nb.jaxpr.equation_signatures import Signatures
from pathways_nb.program.shortened import shortened
from pathways_nb.trace.launch_ops import Ops
from tests.support import block_models as models
from tests.support import whole_models
from tests.support.same_computation import results

BLOCKS, DEPTHS = 8, (4, 5)


def differences(whole, made, depths=DEPTHS):
    """What differs between shortened programs and those that are written with fewer blocks."""
    found = []
    for program, depth in zip(whole.programs, depths, strict=True):
        step, arguments = made(depth)
        direct = jax.make_jaxpr(step)(*arguments)
        signatures = Signatures()
        if results(program.jaxpr, signatures) != results(direct, signatures):
            found.append(depth)
    return found


@pytest.mark.parametrize("name", models.SHORTENED)
def test_a_shortened_step_computes_what_the_model_of_fewer_blocks_does(name):
    made = models.SHORTENED[name]
    step, arguments = made(BLOCKS)
    whole = shortened(jax.make_jaxpr(step)(*arguments), DEPTHS)
    assert whole is not None
    assert whole.blocks == BLOCKS
    assert differences(whole, made) == []


def test_numbers_agree_too():
    step, arguments = models.adamw(6)
    (program,) = shortened(jax.make_jaxpr(step)(*arguments), (3,)).programs
    flat = jax.tree.leaves(arguments)
    kept = [flat[at] for at in program.arguments]
    direct, others = models.adamw(3)
    wanted = jax.tree.leaves(direct(*jax.tree.unflatten(jax.tree.structure(others), kept)))
    found = jex.jaxpr_as_fun(program.jaxpr)(*kept)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", whole_models.UNCHANGED)
def test_what_has_no_blocks_to_take_out_is_left_as_it_is(name):
    step, arguments = whole_models.UNCHANGED[name](BLOCKS)
    assert shortened(jax.make_jaxpr(step)(*arguments), DEPTHS) is None


@pytest.mark.parametrize("made", [whole_models.two_before, whole_models.u_net])
def test_blocks_that_read_others_than_their_neighbours_are_not_mistaken(made):
    step, arguments = made(BLOCKS)
    whole = shortened(jax.make_jaxpr(step)(*arguments), (6,))
    assert whole is None or differences(whole, made, (6,)) == []


def test_dropout_keeps_its_keys():
    step, arguments = models.dropout(BLOCKS)
    whole = shortened(jax.make_jaxpr(step)(*arguments), DEPTHS)
    assert whole is not None
    assert [len(one.arguments) for one in whole.programs] == [
        len(jax.tree.leaves(models.dropout(n)[1])) for n in DEPTHS
    ]


def test_a_program_of_few_blocks_is_left_as_it_is():
    step, arguments = models.llama(4)
    assert shortened(jax.make_jaxpr(step)(*arguments), (2, 4)) is None


def test_results_and_arguments_go_with_their_blocks():
    step, arguments = models.adamw(6)
    jaxpr, shape = jax.make_jaxpr(step, return_shape=True)(*arguments)
    (program,) = shortened(jaxpr, (3,)).programs

    def names(tree, positions):
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
        return [paths[at] for at in positions]

    kept = {name.split("'blocks'][")[1][0] for name in names(arguments, program.arguments) if "'blocks'" in name}
    assert len(kept) == 3
    assert kept == {name.split("'blocks'][")[1][0] for name in names(shape, program.results) if "'blocks'" in name}
    assert [one for one in names(shape, program.results) if "loss" in one] == ["[2]['loss']"]


UNARY = (jnp.tanh, jnp.sin, lambda x: x * 2.0, lambda x: x - x.mean(-1, keepdims=True), jnp.exp)


def random_model(seed):
    """A model whose blocks, and what joins them, are drawn at random; some can be shortened, others cannot."""
    draw = random.Random(seed)
    shape = [(draw.randrange(len(UNARY)), draw.randrange(4)) for _ in range(draw.randrange(1, 5))]
    kinds = draw.choice([1, 1, 2])
    carries, reads_before, shares = draw.random() < 0.3, draw.random() < 0.3, draw.random() < 0.3
    metric, optimizer = draw.choice(["none", "sum", "stack", "list"]), draw.choice(["sgd", "momentum"])
    remat, norm = draw.random() < 0.4, draw.random() < 0.5

    def block(p, x, other, kind, table):
        for unary, what in shape:
            x = UNARY[(unary + kind) % len(UNARY)](x)
            x = [lambda x: x @ p["a"], lambda x: x + p["b"], lambda x: x + other, lambda x: x * table][what](x)
        return x @ p["a"] + p["b"], x.sum()

    def made(n):
        rng = np.random.default_rng(seed)
        params = [models.weights(rng, a=(5, 5), b=(5,)) for _ in range(1 if shares else n * kinds)]

        def loss(params, x):
            other, extra, table = x, [], jnp.cos(jnp.arange(5.0))
            for at in range(n * kinds):
                before = x
                run = jax.checkpoint(block, static_argnums=3) if remat else block
                p = params[0 if shares else at]
                x, one = run(p, x, other, at % kinds, table)
                extra.append(one)
                other = before if reads_before else x * 0.5 if carries else other
            total = x.sum()
            if metric == "sum":
                total += sum(extra)
            elif metric == "stack":
                total += jnp.stack(extra).prod()
            return total, extra if metric == "list" else ()

        def step(params, momentum, x):
            (lost, more), g = jax.value_and_grad(loss, has_aux=True)(params, x)
            size = jnp.sqrt(sum(jnp.vdot(one, one) for one in jax.tree.leaves(g))) if norm else 1.0
            rate = 0.9 if optimizer == "momentum" else jnp.float32(0.5)
            momentum = jax.tree.map(lambda m, g: rate * m + g / size, momentum, g)
            return jax.tree.map(lambda p, m: p - m, params, momentum), momentum, lost, more

        return step, (params, params, models.weights(rng, x=(3, 5))["x"])

    return made


def test_random_models_are_shortened_right_or_not_at_all():
    done = 0
    for seed in range(40):
        made = random_model(seed)
        step, arguments = made(BLOCKS)
        whole = shortened(jax.make_jaxpr(step)(*arguments), (5,))
        if whole is not None:
            done += 1
            # A block that lacks something at an end, or half of one at each end, may count for none.
            depth = BLOCKS - (whole.blocks - 5)
            assert differences(whole, made, (depth,)) == [], seed
    assert done > 15


def test_values_go_on_along_the_line_through_the_greatest_depths():
    assert extended([7.0], [3], 3) == 7.0
    assert extended([1.0, 3.0], [2, 4], 32) == 31.0
    assert extended([9.0, 3.0, 4.0], [1, 2, 3], 5) == 6.0


def test_memory_goes_along_a_line_in_each_part_of_the_course():
    def program(blocks):
        """A loss that needs 100 bytes, and a backward pass that needs 10 for each block, one after the other."""
        sizes = {"loss": 100, "backward": 10 * blocks}
        values = [BufferValue(name, "{}", "temporaries", size, 1, 0, "u8[]") for name, size in sizes.items()]
        ranges = (LiveRange("loss", "{}", 0, 49), LiveRange("backward", "{}", 50, 99))
        use = {"arguments": 7 * blocks, "results": 1, "temporaries": max(sizes.values())}
        return HeldBuffers(Buffers(use, tuple(values)), LiveRanges(("op",) * 100, ranges, ()), Ops())

    assert extended_bytes([program(4), program(8)], [4, 8], 32) == pytest.approx(program(32).buffers.total)
