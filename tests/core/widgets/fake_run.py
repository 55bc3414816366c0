"""A little pipeline as the views see it: two stages on two islands of four devices, eight microbatches, 1F1B order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pathways_nb.cost.model import CostModel
from pathways_nb.plan.graph import Graph, Node, Value
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.trace.launch_ops import Ops
from pathways_nb.trace.op_graph import OpGraph
from pathways_nb.trace.record import Events, Record
from pathways_nb.trace.rows import Label, Row

MICROBATCHES = 8
NAMES = ("left", "right")


@dataclass
class FakeProgram:
    """A drawn program."""

    graph: Graph
    where: Mapping[int, str]
    routes: Mapping[tuple[int, int], str]
    runs: int = 1
    needed: dict[int, tuple[str, int]] = field(default_factory=dict)
    layouts: Mapping[tuple[int, int], str] = field(default_factory=dict)


@dataclass
class FakeRun:
    """A run whose events can be revealed little by little."""

    programs: Sequence[FakeProgram]
    recorded: Events
    islands: tuple[int, ...] = (4, 4)
    island_names: tuple[str, ...] = ()
    name: str = "fake"
    finished: bool = True
    shown: int | None = None
    hbm: tuple[int, ...] = (0, 0)
    ops: Ops = field(default_factory=Ops)
    op_graph: OpGraph = field(default_factory=OpGraph)
    last_time: Events | None = None
    link_model: CostModel | None = None

    @property
    def events(self) -> Events:
        """The events revealed so far."""
        return self.recorded if self.shown is None else self.recorded.select(np.arange(self.shown))

    def headline(self) -> str:
        """What matters, with a character that HTML would swallow."""
        return f"{self.name} waits <20 % of the time"

    def summary_line(self) -> str:
        """A plain line, with a character that HTML would swallow."""
        return f"{len(self.events)} events on {sum(self.islands)} devices, bubble < 12 %"


def places() -> tuple[VirtualSlice, VirtualSlice]:
    """Two slices of four devices."""
    return VirtualSlice((4,), ("x",), 0, "left"), VirtualSlice((4,), ("x",), 1, "right")


def training_step(name: str = "train_step", runs: int = 200) -> FakeProgram:
    """arguments -> stage0 -> stage1 -> stage1 (bwd) -> stage0 (bwd) -> result."""
    left, right = places()
    sizes = (4096, 2048, 65_536, 2048, 4, 2048, 65_536, 65_536)
    values = tuple(Value(i, (size // 4,), "float32", size) for i, size in enumerate(sizes))
    nodes = (
        Node(0, "argument", "batch", None, (), (0,)),
        Node(1, "argument", "params", None, (), (2,)),
        Node(2, "computation", "stage0", left, (0, 2), (1,), "Cell In[3], line 4"),
        Node(3, "computation", "stage1", right, (1, 2), (3, 4), "Cell In[3], line 9"),
        Node(4, "computation", "stage1 (bwd)", right, (3,), (5, 6), "Cell In[3], line 9"),
        Node(5, "computation", "stage0 (bwd)", left, (5, 1), (7,), "Cell In[3], line 4"),
        Node(6, "result", "result", None, (4, 6, 7), ()),
    )
    routes = {(2, 3): "DCN", (4, 5): "DCN", (0, 2): "host", (1, 2): "host", (1, 3): "host"}
    where = {left.serial: "island 0, dev 0–3", right.serial: "island 1, dev 0–3"}
    return FakeProgram(Graph(name, nodes, values), where, routes, runs)


def unrolled(microbatches: int = MICROBATCHES) -> FakeProgram:
    """The same pipeline with a node per stage and microbatch: more than can be read, so it is folded."""
    left, right = places()
    nodes, values = [Node(0, "argument", "params", None, (), (0,))], [Value(0, (1024,), "float32", 4096)]
    routes: dict[tuple[int, int], str] = {}

    def add(name: str, place: VirtualSlice, inputs: tuple[int, ...]) -> int:
        node, value = len(nodes), len(values)
        nodes.append(Node(node, "computation", name, place, inputs, (value,)))
        values.append(Value(value, (256,), "float32", 1024))
        return value

    ends: list[int] = []
    for _ in range(microbatches):
        first = add("stage0", left, (0, *ends[-1:]))
        second = add("stage1", right, (0, first))
        third = add("stage1 (bwd)", right, (second,))
        ends.append(add("stage0 (bwd)", left, (third,)))
        routes |= {(first, second): "DCN", (third, ends[-1]): "DCN"}
    nodes.append(Node(len(nodes), "result", "result", None, tuple(ends), ()))
    where = {left.serial: "island 0, dev 0–3", right.serial: "island 1, dev 0–3"}
    return FakeProgram(Graph("pipeline", tuple(nodes), tuple(values)), where, routes)


def pipeline_events(forward: float = 0.010, backward: float = 0.020, transfer: float = 0.002) -> Events:
    """Events of one step: what the controller does, then 1F1B over two islands."""
    rows = _controller_rows()
    clock = [0.075, 0.075]
    done: dict[tuple[int, str], float] = {}
    left = [_one_f_one_b(2), _one_f_one_b(1)]
    while left[0] or left[1]:
        for stage in (0, 1):
            if not left[stage]:
                continue
            step = left[stage][0]
            ready = 0.0
            if (stage == 1) == step.startswith("F"):  # needs what the other stage makes
                if (1 - stage, step) not in done:
                    continue
                sent = done[1 - stage, step]
                ready = sent + transfer
                rows.append(Row(_transfer_label(stage, step), sent, ready, 0, "exact"))
            begin = max(clock[stage], ready)
            clock[stage] = done[stage, step] = begin + (forward if step[0] == "F" else backward)
            rows.append(Row(_compute_label(stage, step), begin, clock[stage], 0))
            left[stage].pop(0)
    for island in (0, 1):
        label = Label("collective", "all-reduce", "train_step", "me", -1, NAMES[island], island, 0, 4, bytes=65_536)
        status = "draining" if island else "ok"
        rows.append(Row(label, clock[island], clock[island] + 0.012, 0, "exact", status))
    end = max(clock) + 0.014
    rows.append(Row(Label("wait", "float(loss)"), 0.078, end))
    rows.append(Row(Label("fetch", "loss", bytes=4), end, end + 0.004))
    return Events.from_rows(sorted(rows, key=lambda row: row.end))


def _transfer_label(stage: int, step: str) -> Label:
    name = "activation" if step[0] == "F" else "gradient"
    place = {"place": NAMES[stage], "island": stage, "microbatch": int(step[1:])}
    return Label("transfer", name, "train_step", bytes=2048, route="DCN", **place)  # type: ignore[arg-type]


def _compute_label(stage: int, step: str) -> Label:
    name = f"stage{stage}" + (" (bwd)" if step[0] == "B" else "")
    place = NAMES[stage]
    node = 2 + stage if step[0] == "F" else 5 - stage
    return Label("compute", name, "train_step", "me", node, place, stage, 0, 4, stage, int(step[1:]), bytes=2048)


def _one_f_one_b(warm: int) -> list[str]:
    steps = [f"F{i}" for i in range(warm)]
    for i in range(MICROBATCHES):
        steps.append(f"B{i}")
        if i + warm < MICROBATCHES:
            steps.append(f"F{i + warm}")
    return steps


def _controller_rows() -> list[Row]:
    rows, at = [], 0.002
    for kind, name, lasts in (
        ("trace", "train_step", 0.018),
        ("lower", "stage0", 0.006),
        ("compile", "stage0", 0.020),
        ("lower", "stage1", 0.006),
        ("compile", "stage1", 0.018),
        ("enqueue", "train_step", 0.003),
        ("stall", "hbm full", 0.0),
    ):
        rows.append(Row(Label(kind, name, "train_step"), at, at + lasts))
        at += lasts
    return rows


def fake_run(shown: int | None = None) -> FakeRun:
    """The training step with its events."""
    return FakeRun([training_step()], pipeline_events(), shown=shown, finished=shown is None)


def many_events(count: int, devices: int = 8, seconds: float = 10.0) -> Events:
    """``many_rows`` as events."""
    return Events.from_rows(many_rows(count, devices, seconds))


def many_rows(count: int, devices: int = 8, seconds: float = 10.0) -> list[Row]:
    """``count`` short events, one after another on every device of two islands."""
    half = devices // 2
    labels = [Label("compute", "step", "loop", island=i // half, device=i % half, devices=1) for i in range(devices)]
    each = seconds / (count / devices)
    starts = [(i // devices) * each for i in range(count)]
    return [Row(labels[i % devices], start, start + 0.6 * each) for i, start in enumerate(starts)]


def memory_rows(clients: Sequence[str] = ("me", "bob")) -> list[Row]:
    """Levels over the pipeline of ``fake_run``: of the first client on all devices, of the second on some of one island.

    The second island is divided while the second client holds something on half of it.
    """
    rows = []
    edges = [0.05 + 0.017 * i for i in range(2 * MICROBATCHES + 1)]
    for island in (0, 1):
        kept, each = 3_000_000, 1_100_000
        levels = [kept + each * min(i, 2 * MICROBATCHES - i) * (1 + island) // 2 for i in range(2 * MICROBATCHES)]
        parts = [(0, 4)] if island == 0 else [(0, 2), (2, 2)]
        for held, start, end in zip(levels, edges[:-1], edges[1:], strict=True):
            for first, count in parts:
                rows.append(_level(clients[0], held, start, end, island, first, count))
    rows.append(_level(clients[1], 2_500_000, 0.12, 0.22, 1, 2, 2))
    return sorted(rows, key=lambda row: row.end)


def _level(client: str, held: int, start: float, end: float, island: int, first: int, count: int) -> Row:
    label = Label("memory", "memory", "", client, island=island, device=first, devices=count, bytes=held)
    return Row(label, start, end, quality="exact")


def memory_run(hbm: tuple[int, ...] = (16_000_000, 16_000_000), clients: Sequence[str] = ("me", "bob")) -> FakeRun:
    """The training step with levels of memory of two clients."""
    run = fake_run()
    everything = Record.of(run.recorded)
    for row in memory_rows(clients):
        everything.add(row)
    run.recorded, run.hbm = everything.events(), hbm
    return run
