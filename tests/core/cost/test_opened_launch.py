"""A launch from inside: its ops at their times, their lines and phases, and its memory; recorded texts of compilers."""

from __future__ import annotations

import random

import numpy as np
import pytest

import pathways_nb as pw
from pathways_datasets import recorded
from pathways_nb.cost.hlo.hlo_schedule import LaunchAction, LaunchSchedule
from pathways_nb.cost.hlo.hlo_text import parse
from pathways_nb.cost.hlo.hlo_work import OpWork
from pathways_nb.cost.hlo.phases import phases_in
from pathways_nb.cost.launch.constants import constants
from pathways_nb.cost.launch.launch_timing import launch_seconds
from pathways_nb.cost.launch.op_seconds import LaunchPlace
from pathways_nb.cost.launch.opened_launch import OpenedLaunch, open_launch
from pathways_nb.cost.launch.unrolled_ops import ops_of
from pathways_nb.trace.launch_ops import Ops, Phase, phase_of

H200 = LaunchPlace(pw.chip("gpu_h200_sxm"), [{"process": 0}], 1)
RECORDED = "h200_cudnn_6x4096_full"


def price(action: LaunchAction) -> float:
    """Seconds that an action's bytes say."""
    return action.work.bytes


def act(name: str, queue: str, role: str, seconds: float = 0.0, of: int = -1) -> LaunchAction:
    """An action of some seconds."""
    return LaunchAction(name, queue, role, OpWork(bytes=seconds), of=of)


def loop(name: str, trips: int, *actions: LaunchAction) -> LaunchAction:
    """A loop over some actions."""
    return LaunchAction(name, "compute", "loop", body=LaunchSchedule(actions), trips=trips)


def ops(*actions: LaunchAction, most: int = 100_000) -> Ops:
    """The ops of a schedule."""
    return ops_of(LaunchSchedule(actions), price, most)[0]


def rows(found: Ops) -> list[tuple[str, str, float, float]]:
    """Name, kind and times of each op."""
    return [(one.name, one.kind, one.start, one.end) for one in found]


def test_a_collective_runs_beside_computation_until_something_waits_for_it():
    found = ops(act("gather", "network", "start", 3), act("product", "compute", "run", 2), act("gather.done", "compute", "done", of=0),
                act("next", "compute", "run", 1))  # fmt: skip
    assert rows(found) == [
        ("gather", "collective", 0, 3),
        ("product", "compute", 0, 2),
        ("wait for gather", "wait", 2, 3),
        ("next", "compute", 3, 4),
    ]


def test_a_collective_that_is_hidden_has_no_wait():
    found = ops(
        act("gather", "network", "start", 1), act("product", "compute", "run", 2), act("done", "compute", "done", of=0)
    )
    assert [one.kind for one in found] == ["collective", "compute"]


def test_a_collective_that_is_not_started_apart_is_waited_for_from_begin_to_end():
    found = ops(
        act("scatter", "network", "start", 3), act("sum", "network", "run", 2), act("done", "compute", "done", of=0)
    )
    assert rows(found) == [("scatter", "collective", 0, 3), ("wait for sum", "wait", 0, 5), ("sum", "collective", 3, 5)]


def test_copies_and_transfers_have_queues_of_their_own():
    queues = ("copy", "host", "dcn")
    found = ops(*(act(queue, queue, "start", 1) for queue in queues))
    assert [(one.name, one.kind) for one in found if one.kind != "wait"] == [
        ("copy", "prefetch"), ("host", "host"), ("dcn", "dcn")]  # fmt: skip


def test_each_pass_of_a_loop_is_listed_at_its_time():
    body = (
        act("gather", "network", "start", 1),
        act("product", "compute", "run", 2),
        act("done", "compute", "done", of=0),
    )
    found = ops(act("first", "compute", "run", 1), loop("while", 3, *body))
    assert [one.start for one in found if one.name == "product"] == [1, 3, 5]
    assert [one.start for one in found if one.name == "gather"] == [1, 3, 5]


def test_a_wait_at_the_begin_of_a_pass_is_as_long_as_what_it_waits_for():
    found = ops(loop("while", 3, act("sum", "network", "run", 2), act("product", "compute", "run", 1)))
    assert [(one.start, one.end) for one in found if one.kind == "wait"] == [(0, 2), (3, 5), (6, 8)]


def test_of_too_many_passes_the_first_and_the_last_are_listed():
    schedule = LaunchSchedule((loop("while.7", 1000, act("product", "compute", "run", 1)),))
    found, notes = ops_of(schedule, price, most=10)
    assert [one.start for one in found] == [0, 1, 2, 3, 996, 997, 998, 999]
    assert notes == ("passes 4 to 995 of 1000 of while.7 are not listed: there are too many operations",)
    known = LaunchSchedule((schedule.actions[0]._replace(line="train.py:12"),))
    assert "of 1000 of while.7 (train.py:12) are not listed" in ops_of(known, price, most=10)[1][0]


@pytest.mark.parametrize("seed", range(40))
def test_the_last_op_ends_when_the_launch_does(seed):
    rng = random.Random(seed)

    def made(depth: int) -> LaunchSchedule:
        actions: list[LaunchAction] = []
        for number in range(rng.randrange(1, 8)):
            kind = rng.randrange(5 if depth else 4)
            open_ = [n for n, one in enumerate(actions) if one.role == "start"]
            if kind == 0:
                actions.append(act(f"s{number}", rng.choice(("network", "copy", "host", "dcn")), "start", rng.random()))
            elif kind == 1:
                actions.append(act(f"r{number}", rng.choice(("compute", "network")), "run", rng.random()))
            elif kind < 4:
                actions += [act(f"d{number}", "compute", "done", of=rng.choice(open_))] if open_ else []
            else:
                body = made(depth - 1)
                actions.append(LaunchAction(f"l{number}", "compute", "loop", body=body, trips=rng.randrange(6)))
        return LaunchSchedule(tuple(actions))

    schedule = made(2)
    found, seconds = ops_of(schedule, price)[0], launch_seconds(schedule, price)
    assert max(found["end"], default=0) == pytest.approx(seconds.ordered)
    kinds = {"compute": "compute", "collective": "network", "prefetch": "copy", "host": "host", "dcn": "dcn"}
    for kind, queue in kinds.items():
        of_kind = found.of(kind=kind)
        assert of_kind.seconds == pytest.approx(seconds.busy[queue])
        if kind != "dcn":
            assert (of_kind["start"][1:] >= of_kind["end"][:-1] - 1e-9).all(), "a queue runs one at a time"
    # The queue of instructions computes, waits, or has ended.
    both = found.select(np.isin(found["kind"], ("compute", "wait")))
    assert (both["start"][1:] >= both["end"][:-1] - 1e-9).all()
    assert both.seconds <= seconds.ordered + 1e-9


PHASES = {
    "jit(step)/jvp()/dot_general": "forward",
    "jit(step)/transpose(jvp(jvp()))/checkpoint/mlp/mul": "backward",
    "jit(step)/transpose(jvp(jvp()))/checkpoint/rematted_computation/mlp/mul": "recomputed",
    "jit(step)/adam/mul": "",
    "jit(step)/shard_map/forward pass/gather layers.0/all_gather": "forward",
    "jit(step)/shard_map/backward pass/regather layers.0/all_gather": "backward",
    "jit(step)/backward/all_gather": "",
    "": "",
    "jit(step)/transpose": "",
}


@pytest.mark.parametrize(("source", "phase"), PHASES.items())
def test_the_name_stack_says_the_phase(source, phase):
    assert phase_of(source) == phase


def phases(*names: str, inner: str = "") -> list[Phase]:
    """The phases of instructions with these op names, a loop over one more in front of the last of them."""
    lines = [f'  %i{n} = f32[8]{{0}} negate(%p), metadata={{op_name="{name}"}}' for n, name in enumerate(names)]
    loop = "  %w = f32[8]{0} while(%p), condition=%c, body=%b"
    text = "\n".join([*lines[:-1], loop, f"  ROOT {lines[-1].strip()}"])
    body = f"%b (q: f32[8]) -> f32[8] {{\n  %q = f32[8]{{0}} parameter(0)\n  ROOT %inner = f32[8]{{0}} negate(%q), {inner}\n}}"
    module = parse(f"HloModule m\n\n{body}\n\nENTRY %main (p: f32[8]) -> f32[8] {{\n{text}\n}}\n")
    found = phases_in(module)
    return [found[f"i{n}"] for n in range(len(names))] + [found["inner"]]


def test_what_is_not_differentiated_is_the_optimizer_once_a_backward_pass_began():
    names = ("jit(f)/cast", "jit(f)/transpose(jvp())/zeros", "jit(f)/jvp()/dot_general", "jit(f)/sum",
             "jit(f)/transpose(jvp())/dot_general", "p['w']", "jit(f)/adam/mul")  # fmt: skip
    found = phases(*names, inner='metadata={op_name="jit(f)/while/body/adam/mul"}')
    assert found == ["", "backward", "forward", "", "backward", "", "optimizer", "optimizer"]


def test_in_a_loop_over_parts_of_the_model_nothing_is_the_optimizer():
    body = 'metadata={op_name="jit(f)/while/body/add"}\n  %x = f32[8]{0} negate(%q), metadata={op_name="jit(f)/while/body/jvp()/mul"}'
    found = phases("jit(f)/transpose(jvp())/mul", "jit(f)/adam/add", inner=body)
    assert found == ["backward", "optimizer", ""]


@pytest.fixture(scope="module")
def opened() -> OpenedLaunch:
    """A step that was recorded on a GPU."""
    texts = {name: recorded(f"{RECORDED}.{name}.txt").decode() for name in ("hlo", "buffers", "memory", "live")}
    return open_launch(texts.pop("hlo"), H200, constants("gpu_h200_sxm"), **texts, compiler="XLA of JAX 0.11.2")


def test_a_recorded_step_is_opened_with_lines_and_phases(opened):
    assert opened.ops["end"].max() == pytest.approx(opened.seconds.ordered)
    assert (opened.ops["line"] != "").mean() > 0.98
    assert set(opened.ops["line"]) >= {"rec.py:63", "rec.py:64"}
    assert set(opened.ops["phase"]) == {"", "forward", "backward", "recomputed", "optimizer"}
    assert opened.basis == (
        "XLA of JAX 0.11.2; compiled text 2939b623923037ee; 0.65 of the FLOP/s in products, 0.5 in attention, "
        "0.85 of HBM; in the compiler's order"
    )


def test_the_memory_of_a_recorded_step_is_what_its_compiler_assigned(opened):
    memory = opened.memory
    assert memory.peak == 23_558_786_198
    assert memory.arguments == 18_849_824_768
    assert memory.arguments + memory.results + memory.temporaries == memory.peak
    assert memory.fits
    first, second, *_ = memory.buffers
    assert (first.bytes, first.shape, first.line) == (4 * 2 * 4095 * 32000, "f32[2,4095,32000]", "rec.py:64")
    assert second.op == "p['emb']"


def test_ops_are_placed_in_a_run(opened):
    found = opened.placed("step", "train", 3, 7, 1, 2, start=10.0, seconds=2 * opened.seconds.ordered)
    assert found["end"].max() == pytest.approx(10 + 2 * opened.seconds.ordered)
    assert {(one.launch, one.program, one.node, one.run, one.island, one.device) for one in found} == {
        ("step", "train", 3, 7, 1, 2)}  # fmt: skip


REFUSED = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (36.15G) exceeds "
    "available HBM (31.25G)."
)


def test_a_step_that_was_refused_has_memory_and_no_ops():
    found = open_launch("", H200, constants("gpu_h200_sxm"), refused=REFUSED)
    assert len(found.ops) == 0
    assert (found.memory.peak, found.memory.available) == (int(36.15 * 2**30), int(31.25 * 2**30))
    assert not found.memory.fits
    assert found.memory.refused == REFUSED
    assert found.memory.shortage == "needs 38.8 GB, 5.26 GB more than the 33.6 GB of a device"
    unsaid = open_launch("", H200, constants("gpu_h200_sxm"), refused="INTERNAL: no room.\nstack").memory
    assert unsaid.shortage == "is refused by the compiler: INTERNAL: no room"


TABLES = """HloModule jit_step, is_scheduled=true, num_partitions=8

FileNames
1 "/home/me/train.py"
2 "/venv/lib/python3.11/site-packages/optax/tree.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=4 end_column=9}
2 {file_name_id=2 function_name_id=1 line=40 end_line=40 column=4 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=2 parent_frame_id=3}


ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0), metadata={op_name="p[\\'w\\']"}
  ROOT %r = f32[8]{0} negate(%p), metadata={op_name="jit(step)/neg" stack_frame_id=2}
}
"""


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("metadata={stack_frame_id=1}", "train.py:12"),
        ("metadata={stack_frame_id=2}", "train.py:12"),
        ("metadata={stack_frame_id=3}", "train.py:12"),
        ("metadata={stack_frame_id=9}", ""),
        ('metadata={op_name="a" source_file="/home/me/old.py" source_line=7}', "old.py:7"),
        ("", ""),
    ],
)
def test_a_line_is_the_innermost_of_the_users_files(said, line):
    assert parse(TABLES).sources.line_of(said) == line


def test_the_head_of_a_module_says_its_name_and_devices():
    module = parse(TABLES)
    assert (module.name, module.devices) == ("jit_step", 8)
    assert module.computations["main"].instructions["p"].op_name == "p['w']"


@pytest.mark.parametrize(
    ("chip", "said"),
    [("tpu_v3", ("a device is one of the 2 cores of a tpu_v3",)), ("gpu_h100_sxm", ()),
     ("tpu_v5p", ("a device is a whole chip, its cores together (megacore)",)), ("tpu_v5e", ())],
)  # fmt: skip
def test_what_a_device_is_is_said_where_it_is_not_simply_a_chip(chip, said):
    place = LaunchPlace(pw.chip(chip), [{"process": 0, "coords": (0, 0, 0)}] * 8, 8)
    assert open_launch(TABLES, place, constants(chip)).notes == said
