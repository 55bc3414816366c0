"""What a chip's compiler says of a simulated node, without the compiler: devices, layouts, constants, ops in a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import pathways_nb as pw
from pathways_datasets import recorded
from pathways_nb.compilers import packages, targets
from pathways_nb.compilers.compiling import CompilerError
from pathways_nb.cost.efficiency import EFFICIENCY
from pathways_nb.cost.launch.constants import constants, constants_for
from pathways_nb.cost.launch.op_seconds import LaunchPlace
from pathways_nb.cost.launch.opened_launch import OpenedLaunch, open_launch
from pathways_nb.cost.model import CostModel, NodeCost
from pathways_nb.jaxpr.jaxpr_digest import digest_of
from pathways_nb.runtime.lowering.compiled_steps import CompiledStep
from pathways_nb.runtime.sim import chip_compiler, chip_estimates, simulated_ops
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row

H100 = CostModel.of("gpu_h100_sxm")


@pytest.fixture
def installed(monkeypatch):
    """Set whether compilers count as installed."""
    monkeypatch.setattr(packages, "version_of", lambda kind: f"compiler of {kind} 1.0")
    return lambda is_there: monkeypatch.setattr(packages, "is_installed", lambda kind: is_there)


def test_the_own_compiler_is_taken_where_it_is_there(installed):
    installed(True)
    assert [chip_compiler.kind_for(H100, choice) for choice in ("auto", "own", "cpu")] == ["gpu", "gpu", None]
    assert (
        chip_compiler.about(H100, "auto") == "nodes from 50 µs on are compiled for gpu_h100_sxm by compiler of gpu 1.0"
    )
    assert chip_compiler.about(H100, "cpu") == "nodes are estimated from their jaxpr, and compiled for CPU devices"


def test_measured_shares_of_peaks_count_more_than_a_compiled_text(installed):
    installed(True)
    measured = CostModel.of("gpu_h100_sxm", efficiency=EFFICIENCY.replace(matmul=0.5))
    assert chip_compiler.kind_for(measured, "auto") is None
    assert chip_compiler.kind_for(measured, "own") == "gpu"


def test_without_the_package_one_line_says_how_to_get_it(installed):
    installed(False)
    assert chip_compiler.kind_for(H100, "auto") is None
    assert chip_compiler.about(H100, "auto") == (
        "nodes are estimated from their jaxpr, and compiled for CPU devices; the compiler of gpu_h100_sxm says more: "
        "`python -m pathways_nb compilers install gpu` installs it into a folder of its own (about 400 MB); it needs no "
        "GPU."
    )
    with pytest.raises(
        pw.UsageError,
        match=r'attach\("sim", compiler="own"\): the GPU compiler, which gpu_h100_sxm needs, is not installed\. '
        r"`python -m pathways_nb compilers install gpu` installs it",
    ):
        chip_compiler.kind_for(H100, "own")


def test_a_chip_without_a_compiler_is_estimated_or_refused(installed):
    installed(True)
    chip = pw.chip("gpu_h100_sxm").replace(compiler="mine", name="gpu_mine")
    assert chip_compiler.kind_for(CostModel.of(chip), "auto") is None
    with pytest.raises(
        pw.UsageError,
        match=r'attach\("sim", compiler="own"\): no compiler knows the chip gpu_mine\. Leave compiler out .*, or name '
        r"the most similar chip's: chip\.replace\(compiler=…\)\.",
    ):
        chip_compiler.kind_for(CostModel.of(chip), "own")


@pytest.mark.parametrize(
    ("chip", "island", "first", "count", "compiled", "hosts"),
    [
        ("gpu_h100_sxm", 64, 0, 16, "1x2x8", 2),
        ("gpu_h100_sxm", 64, 0, 4, "1x1x4", 1),
        ("gpu_h100_sxm", 64, 8, 8, "1x1x8", 1),
        ("gpu_h100_sxm", 64, 6, 4, "1x2x2", 2),
        ("gpu_h100_sxm", 64, 6, 8, "1x4x2", 2),  # 2 in the first host and 6 in the next: hosts are equal
        ("tpu_v5e", 64, 0, 16, "v5e:2x8", 2),
        ("tpu_v5e", 64, 16, 1, "v5e:1x1", 1),
        ("tpu_v5e", 64, 0, 7, "v5e:1x7", 1),
        ("tpu_v5p", 64, 32, 32, "v5p:2x4x4", 8),
        ("tpu_v3", 32, 3, 1, "v3:1x1", 1),  # half a chip
    ],
)
def test_a_place_is_compiled_in_the_shape_that_it_has_in_its_island(chip, island, first, count, compiled, hosts):
    topology = CostModel.of(chip).topology(island)
    label = Label("compile", "f", device=first, devices=count)
    request: Any = SimpleNamespace(label=label, mesh=SimpleNamespace(size=count))
    found = chip_compiler.devices_of(request, topology)
    assert found.target.name == compiled
    assert found.words == f"{count} device{'s' * (count > 1)}, {compiled}"
    assert len(set(found.hosts)) == hosts
    assert found.target.devices >= count
    assert targets.kind_of(topology.chip) == found.target.kind


HEADER = (
    "HloModule jit_call, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias), {2}: (1, {}, must-alias) }, "
    "entry_computation_layout={(f32[8,8]{1,0:T(8,128)}, u32[])->(f32[4,8]{1,0:T(8,128)(2,1)}, /*index=1*/f32[], "
    "bf16[2,16]{1,0})}, allow_spmd_sharding_propagation_to_output={true}, num_partitions=8, names={f32[9]}"
)


def test_shapes_of_results_stand_in_the_first_line_of_a_text():
    assert chip_estimates._results(HEADER) == [(4, 8), (), (2, 16)]
    assert chip_estimates._results("") == []
    assert chip_estimates._ALIAS.findall(HEADER) == ["0", "2"]


@pytest.mark.parametrize(
    ("local", "shape", "propagated", "spec"),
    [
        ((4, 8), (8, 8), P("x"), P("x")),
        ((4, 8), (8, 8), P(), P("x")),
        ((8, 1), (8, 8), None, P(None, ("x", "y"))),
        ((4, 2), (8, 8), P("y"), P("x", "y")),
        ((8, 8), (8, 8), P("x"), P()),
        ((3, 8), (5, 8), None, P("x")),  # 5 rows in parts of 3
        ((4, 8, 2), (8, 8), None, P("x")),  # a typed key has a further dimension
        ((7, 8), (8, 8), None, None),
    ],
)
def test_the_layout_of_a_result_follows_from_its_shape_on_a_device(local, shape, propagated, spec):
    assert chip_estimates._spec(local, shape, propagated, {"x": 2, "y": 4}) == spec


def test_constants_follow_what_the_user_changes_of_a_chip():
    usual = constants("gpu_h100_sxm")
    assert constants_for(H100.chip, H100.network) == usual
    faster = pw.chip("gpu_h100_sxm").replace(link_bw=2 * pw.chip("gpu_h100_sxm").link_bw)
    assert constants_for(faster, H100.network) == usual.changed(link_bw=2 * usual.link_bw)
    network = H100.network.replace(host_bw=H100.network.host_bw / 2)
    found = constants_for(H100.chip, network)
    assert (found.node_bw, found.link_bw) == (usual.node_bw / 2, usual.link_bw)
    named = pw.chip("gpu_h100_sxm").replace(name="mine", hbm_bw=1e12)
    assert constants_for(named, H100.network) == usual


# ---- ops of simulated runs


@pytest.fixture(scope="module")
def opened() -> OpenedLaunch:
    """A step that was recorded on a GPU."""
    texts = {name: recorded(f"h200_cudnn_6x4096_full.{name}.txt").decode() for name in ("hlo", "buffers")}
    place = LaunchPlace(pw.chip("gpu_h200_sxm"), [{"process": 0}], 1)
    return open_launch(texts["hlo"], place, constants("gpu_h200_sxm"), buffers=texts["buffers"])


def plan(opened: OpenedLaunch | None) -> Any:
    """A plan of one launch on two devices of the second island, which begins a millisecond after its event."""
    label = Label("compute", "f", "step", node=3, island=1, device=2, devices=2)
    seconds = opened.seconds.ordered if opened is not None else 1.0
    cost = NodeCost(1e-3 + seconds, 1e-3, seconds, 0.0, "", "")
    step: Any = SimpleNamespace(kind="launch")
    return SimpleNamespace(actions=(CompiledStep(step, label, cost=cost, opened=opened),))


def events(plan: Any, *times: tuple[float, float]) -> Events:
    (action,) = plan.actions
    return Events.from_rows([Row(action.label, start, end, run, "simulated") for run, (start, end) in enumerate(times)])


def test_each_launch_has_the_ops_of_its_node_at_its_time(opened):
    made, lasts = plan(opened), 1e-3 + opened.seconds.ordered
    found = simulated_ops.simulated_ops(events(made, (1.0, 1.0 + lasts), (5.0, 5.0 + 2 * lasts)), {0: made, 1: made})
    assert len(found) == 2 * len(opened.ops)
    first, second = found.of(run=0), found.of(run=1)
    assert first["start"] == pytest.approx(1.0 + 1e-3 + opened.ops["start"])
    # The second one was slower, by noise or beside others.
    assert second["end"] == pytest.approx(5.0 + 2e-3 + 2 * opened.ops["end"])
    assert {*zip(found["launch"], found["program"], found["node"], found["island"], found["device"], strict=True)} == {
        ("f", "step", 3, 1, 2)
    }
    assert len(found.labels) == len(opened.ops.labels), "launches share their labels"
    assert found["start"].tolist() == [*first["start"], *second["start"]], "in the order of launches"
    assert found.note == "predicted; one device of each launch stands for all"
    assert found.note in repr(found)


def test_later_launches_than_can_be_shown_are_left_out_and_counted(opened, monkeypatch):
    monkeypatch.setattr(simulated_ops, "MOST_OPS", 2 * len(opened.ops))
    made = plan(opened)
    times = [(2.0 * number, 2.0 * number + 1) for number in range(4)]
    found = simulated_ops.simulated_ops(events(made, *times), dict.fromkeys(range(4), made))
    assert set(found["run"]) == {0, 1}
    assert found.note.endswith("stands for all; those of 2 later launches are left out")


def test_launches_that_nobody_opened_have_no_ops(opened):
    made = plan(None)
    assert len(simulated_ops.simulated_ops(events(made, (0.0, 1.0)), {0: made})) == 0
    assert len(simulated_ops.simulated_ops(events(plan(opened), (0.0, 1.0)), {})) == 0
    assert len(simulated_ops.simulated_ops(events(plan(opened), (1.0, 1.0)), {0: plan(opened)})) == 0, "it was skipped"


def test_a_run_keeps_the_plans_of_its_programs_and_a_saved_one_their_ops(opened, tmp_path):
    made = plan(opened)
    run = pw.Run("a", (2, 4), finished=True)
    run.record.add(Row(made.actions[0].label, 0.0, 1.0, 0, "simulated"))
    assert "on simulated chips, launches have them that the chip's own compiler has compiled" in repr(run.ops)
    run.opened = {0: made}
    assert len(run.ops) == len(opened.ops)
    assert run.ops is run.ops, "while nothing happens"
    run.record.add(Row(made.actions[0].label, 1.0, 2.0, 0, "simulated"))
    assert len(run.ops) == 2 * len(opened.ops)
    outer = pw.Run("outer", (2, 4))
    outer.absorb(run)
    assert len(outer.ops) == len(run.ops)
    run.save(tmp_path / "a.run")
    loaded = pw.load(tmp_path / "a.run")
    assert np.array_equal(loaded.ops["start"], run.ops["start"])
    assert loaded.ops.note == run.ops.note


def test_nodes_with_other_constants_or_scopes_are_others():
    def code(trips: Any, scope: str, inner: bool = False) -> Any:
        def looped(x: Any) -> Any:
            with jax.named_scope(scope):
                return jax.lax.fori_loop(0, jnp.asarray(trips, int)[0], lambda _, x: jnp.tanh(x), x)

        closed = jax.make_jaxpr(jax.jit(looped) if inner else looped)(1.0)
        return SimpleNamespace(items=[SimpleNamespace(title="looped", jaxpr=closed, inputs=())])

    three, nine = np.array([3, 7]), np.array([9, 7])
    large = np.zeros(1 << 16, int)

    def key(*each: Any) -> Any:
        made = code(*each)
        return digest_of(made.items[0].jaxpr), chip_estimates._written(made)

    assert key(three, "a") == key(three.copy(), "a")
    assert len({key(three, "a"), key(nine, "a"), key(three, "b"), key(three, "a", True), key(nine, "a", True)}) == 5
    assert key(large, "a") == key(large + 1, "a"), "of a large constant the shape counts"


def test_an_option_that_the_compiler_does_not_know_is_an_error_and_no_estimate():
    estimator = chip_estimates.ChipEstimator(H100, "auto")
    error = CompilerError("it does not take this program (compile): No such compile option: 'xla_gpu_x'")
    request: Any = SimpleNamespace(label=SimpleNamespace(name="train", program="step"))
    with pytest.raises(pw.UsageError) as refused:
        estimator._without(request, error)
    assert str(refused.value) == (
        "train of step: the compiler of gpu_h100_sxm has no option 'xla_gpu_x' (compiler_options=). Correct its name; an "
        'option of one platform only is written "gpu:NAME", "tpu:NAME" or "cpu:NAME".'
    )


def test_what_needs_devices_to_be_lowered_is_named():
    estimator = chip_estimates.ChipEstimator(H100, "auto")
    error = NotImplementedError("AbstractMesh cannot be used when jaxpr contains primitives that require devices.")
    request: Any = SimpleNamespace(label=None)
    assert estimator._without(request, error).note == (
        "not compiled by its chip's compiler: NotImplementedError: JAX lowers custom_partitioning, and callbacks over "
        "several devices, only where there are devices"
    )
