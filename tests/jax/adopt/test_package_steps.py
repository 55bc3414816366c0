"""Steps of packages that were not written for this one: what their compiled texts say, and those taken over live.

The texts are recorded (``python -m tests.support.package_steps.records``), as the packages' code is not kept here.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import jax
import pytest

from pathways_nb.adopt.taken_step import TakenStep, take
from tests.support.package_steps import records
from tests.support.package_steps.listed import BY_NAME, STEPS, UNCHANGED
from tests.support.package_steps.records import RECORDS, read

GRADIENTS = ("all-reduce", "reduce-scatter")


def moved(name: str, *kinds: str) -> float:
    """Bytes of some kinds of collectives in a step."""
    return sum(row.bytes * row.count for row in read(name).collectives().rows if row.kind in kinds)


def lines(name: str, *kinds: str) -> set[str]:
    """Files of the lines that have some kinds of collectives."""
    return {row.line.partition(":")[0] for row in read(name).collectives().rows if not kinds or row.kind in kinds}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_recorded_step_has_a_time_that_fits_and_lines_of_its_own_files(name):
    step = read(name)
    assert 0 < step.seconds.low <= step.seconds <= step.seconds.high
    assert step.memory().fits
    found = step.collectives().rows
    assert [row.exposed for row in found] == sorted((row.exposed for row in found), reverse=True)
    assert all(set(row.axes) <= set(step.mesh) for row in found)
    assert sum(row.exposed for row in found) <= 1.001 * step.seconds
    # None of them in the code that takes it over, nor in a framework's.
    assert not {file for file in lines(name) if file.startswith(("traced_call", "lowered", "records", "listed"))}


def test_the_list_is_of_twelve_steps_and_more_and_its_texts_are_small():
    assert len(STEPS) >= 12
    assert sum(step.how.startswith(UNCHANGED) for step in STEPS) >= 12
    assert {one.name.removesuffix(".json.gz") for one in RECORDS.iterdir()} == set(BY_NAME)
    assert sum(one.stat().st_size for one in RECORDS.iterdir()) < 4 * 2**20


def test_the_table_of_the_guide_is_made_of_the_records():
    assert records.guide_with(records.table()) == records.GUIDE.read_text()


def test_fully_sharded_steps_gather_weights_and_reduce_gradients_of_their_shapes():
    layer, bias = 4 * 4096**2, 4 * 4096
    # Four layers; each is gathered once, as the last forward value of its inputs is all that the backward pass needs.
    assert moved("jax_readme", "all-gather") == 4 * layer
    assert moved("jax_explicit", "all-gather") == 4 * layer
    # Left to itself, the compiler adds whole gradients up; with axes in the types, each device keeps its part.
    assert moved("jax_readme", "all-reduce") == pytest.approx(4 * (layer + bias), rel=1e-4)
    assert moved("jax_explicit", "reduce-scatter") == 4 * layer
    assert moved("jax_explicit", "all-reduce") == pytest.approx(4 * bias, rel=1e-2)
    assert moved("flax_average", "all-gather") == moved("flax_average", "reduce-scatter") == layer
    assert moved("flax_average", "all-reduce") == bias


def test_data_parallel_steps_add_up_gradients_of_all_parameters_and_statistics_of_batches():
    # 824,458 parameters of two convolutions, two normalisations and two layers.
    assert moved("flax_mnist", "all-reduce") == pytest.approx(4 * 824_458, rel=0.01)
    # 25.6 million parameters of ResNet-50, and twice as many statistics as it has channels, once each.
    assert moved("flax_resnet50", "all-reduce") == pytest.approx(4 * 25_557_032, rel=0.02)
    assert lines("flax_resnet50") <= {"models.py", "train.py"}
    assert {row.function for row in read("flax_mnist").collectives().rows} >= {"CNN.__call__"}


def test_what_costs_most_is_found_in_each():
    def worst(name: str) -> Any:
        return read(name).collectives().rows[0]

    # Recurrent steps laid out as FSDP exchange in every pass of their loops.
    assert worst("haiku_rnn").count > 100
    assert worst("haiku_rnn").line.startswith("train.py:")
    assert worst("flax_sst2").count > 100
    assert any("same in every pass" in row.flag for row in read("flax_sst2").collectives().rows)
    assert any("same in every pass" in row.flag for row in read("flax_seq2seq").collectives().rows)
    # Messages between nodes of a graph that lie on other devices are gathered whole.
    nodes = 4 * 2**17 * 256
    assert worst("flax_molpcba").bytes == pytest.approx(nodes, rel=0.1)
    # A cell of a notebook is a file of its own.
    assert worst("flax_diffusion").line.startswith("digits_diffusion_model.ipynb[11]:")


def test_axes_of_rules_and_contexts_are_those_of_the_mesh():
    axes = {axis for row in read("flax_lm1b").collectives().rows for axis in row.axes}
    assert axes == {"data", "fsdp", "tensor"}
    assert {axis for row in read("flax_gspmd").collectives().rows for axis in row.axes} == {"data", "model"}
    assert {axis for row in read("flax_minigpt").collectives().rows for axis in row.axes} == {"batch"}


def test_a_step_of_an_installed_trainer_has_the_lines_of_its_model():
    assert "model.py" in lines("tunix_lora", "all-gather")
    # LoRA: gathered are the weights, but added up only the gradients of what is trained, and values of the batch.
    assert not lines("tunix_lora") & {"linear.py", "lora.py", "compilation.py"}


def test_a_kernel_counts_by_its_bytes_and_that_is_said():
    assert read("pallas_attention").collectives().rows == ()
    (note,) = [note for note in read("pallas_attention").notes if "kernel" in note]
    assert "counts by its bytes alone" in note


def taken(name: str) -> TakenStep:
    """An installed step, taken over on this version of JAX."""
    step = BY_NAME[name]
    call = step.call()
    with contextlib.ExitStack() as stack:
        for context in call.around:
            stack.enter_context(context())
        return take(call.step, call.args, call.kwargs, step.mesh)


@pytest.mark.parametrize(
    ("name", "function", "arguments", "results"),
    [
        ("jax_readme", "loss", 10, 8),
        ("jax_explicit", "loss", 10, 8),
        ("equinox_readme", "loss_fn", 4, 2),
        ("flax_average", "train_step", 7, 5),
        ("pallas_attention", "<lambda>", 3, 3),
    ],
)
def test_an_installed_step_is_taken_over_live(name, function, arguments, results):
    found = taken(name)
    assert found.name == function
    assert len(found.structs) == arguments
    assert len(found.results) == results
    assert found.donated == ()
    assert dict(found.mesh.shape_tuple) == BY_NAME[name].mesh
    made = jax.eval_shape(found.function, *(jax.ShapeDtypeStruct(one.shape, one.dtype) for one in found.structs))
    assert math.prod(made[0].shape) > 0
