"""The documentation's cells of schedules (5) and simulated devices (6, 7, 10 to 12) as typed, in a real IPython."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

import pathways_nb as pw
from pathways_nb.session import default_controller
from tests.support.api_cells import CELLS, cell
from tests.support.measured_machine import forget_calibrations, measured
from tests.support.notebook import Notebook

CELL_FIVE = cell(5)
CELL_SIX = cell(6)
CELL_SEVEN = cell(7)
CELL_NINE = cell(9)
CELL_TEN = cell(10)
CELL_ELEVEN = cell(11)
CELL_TWELVE = cell(12)
BEFORE = """\
import jax, jax.numpy as jnp, numpy as np, pathways_nb as pw
"""
BEFORE_SIX = """\
left, right = pw.virtual_slice(4, island=0), pw.virtual_slice(4, island=1)
a = pw.jit(lambda v: v - v.mean(), on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
b = pw.jit(lambda v: v * 2, on=right, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
chain = pw.program(lambda v: b(a(b(a(v)))), name="chain")
v = np.arange(8, dtype=np.float32)
"""
ONE_CLIENT = """\
pod = pw.virtual_slice(32)
short, long = pw.work(1e-3, on=pod, name="short"), pw.work(4e-3, on=pod, name="long")
mix = pw.program(lambda: (short(), long()), name="mix")
"""
TWO_TENANTS = """\
pod = pw.virtual_slice(32)
short = pw.program(pw.work(1e-3, on=pod), name="short")
long = pw.program(pw.work(4e-3, on=pod), name="long")

class Mix:
    def run(self):
        pw.wait((short(), long()))
        with pw.record("mix") as run, pw.client("ann") as ann, pw.client("bob") as bob:
            for _ in range(40):
                with ann.acting(): short()
                with bob.acting(): long()
        return run

mix = Mix()
"""
BEFORE_TEN = """\
def train_on(n):
    place = pw.virtual_slice(n)
    loss = pw.jit(lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2), on=place, in_shardings=(None, pw.P("x")))

    @pw.program
    def train(params, batch):
        value, gradient = jax.value_and_grad(loss)(params, batch)
        return params - 0.1 * gradient, value

    return train, (jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16), jax.ShapeDtypeStruct((8 * n, 1024), jnp.bfloat16))

train, abstract = train_on(2048)
"""
BEFORE_ELEVEN = """\
train, _ = train_on(4)
params, batch = np.full((16, 16), 0.1, np.float32), np.ones((8, 16), np.float32)
"""
BEFORE_NINE = """\
import optax
from pathways_nb.examples import llama3
pw.attach("sim", chip="gpu_h100_sxm", islands=1, devices_per_island=128)
shape = llama3.Shape(layers=2, features=512, hidden=1024, heads=8, shared_heads=2, vocabulary=2048)
tokens, key = jax.ShapeDtypeStruct((128, 512), "int32"), jax.random.key(0)
def init(key):
    return jax.tree.map(lambda leaf: jax.random.normal(key, leaf.shape), llama3.params(shape))
def loss_fn(params, tokens=tokens, targets=tokens):
    return llama3.loss(shape)(params, tokens, targets)
"""
BEFORE_TWELVE = """\
def at(n, policy):
    program, arguments = train_on(n)
    with pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=n, policy=policy):
        return program.run(*arguments)
"""


@pytest.fixture
def notebook(monkeypatch, tmp_path):
    """A kernel in a folder of its own, in which nothing is attached; the machine is one that is known."""
    module = sys.modules["pathways_nb.calibration.calibrate"]
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    forget_calibrations(monkeypatch)
    monkeypatch.setattr(module, "measure", lambda on, quick, say: measured(devices=4, islands=len(on.islands)))
    monkeypatch.setattr(default_controller, "_state", default_controller._Current())
    monkeypatch.chdir(tmp_path)
    book = Notebook()
    book.ok(BEFORE)
    yield book
    book.shell.user_ns.clear()
    InteractiveShell.clear_instance()
    if (controller := default_controller.peek()) is not None:
        controller.close()


def test_there_are_twelve() -> None:
    assert len(CELLS) == 12


def test_cell_five_two_schedules_and_a_question(notebook, capsys) -> None:
    notebook.ok(BEFORE)
    notebook.ok(CELL_FIVE)
    said = capsys.readouterr().out
    for name in ("gpipe", "1f1b"):
        assert f"{name}, 4 devices × 8 microbatches" in said
    assert said.count("bubble 27.3% (closed form") >= 2
    assert "07.bubble: right" in said


@pytest.mark.parametrize("attached", ['pw.attach("cpu", islands=2, devices_per_island=4)', ""])
def test_cell_six_sequential_and_parallel_dispatch_of_what_is_here(notebook, attached, capsys) -> None:
    notebook.ok(attached)
    notebook.ok(BEFORE_SIX)
    before = default_controller.peek()
    notebook.ok(CELL_SIX)
    assert default_controller.peek() is before
    assert "events matched, 0 and 0 without partner" in capsys.readouterr().out
    sequential, parallel = (notebook.names[name].summary() for name in "sp")
    assert sequential.launches == parallel.launches == 4
    assert sequential.makespan - parallel.makespan >= 3e-3, "three of four messages are hidden"


def test_cell_seven_a_policy_of_one_s_own(notebook) -> None:
    notebook.ok(ONE_CLIENT + CELL_SEVEN)
    run = notebook.names["r"]
    assert run.summary().launches == 2
    assert run.about["options"]["policy"] == "least_served"
    lasts = run.events.of_kind("compute")["end"] - run.events.of_kind("compute")["start"]
    np.testing.assert_allclose(lasts, [1e-3, 4e-3])
    with pytest.raises(pw.NotAttachedError):
        notebook.names["mix"].run()


def test_cell_seven_two_tenants_get_as_much_time_as_each_other(notebook) -> None:
    notebook.ok(TWO_TENANTS + CELL_SEVEN)
    gangs = notebook.names["r"].events.of_kind("compute")
    ann, bob = (gangs.select(gangs.is_("client", name)) for name in ("ann", "bob"))
    assert len(ann) == len(bob) == 40
    both = gangs.select((gangs["end"] <= ann["end"].max()) & ~gangs.is_("client", ""))
    lasts = both["end"] - both["start"]
    had = {name: lasts[both["client"] == name].sum() for name in ("ann", "bob")}
    assert abs(had["ann"] - had["bob"]) <= 5e-3 + 4e-3, "what is enqueued ahead, and a gang"


def test_cell_nine_a_plan_of_a_step_that_is_too_large_for_this_machine(notebook) -> None:
    notebook.ok(BEFORE_NINE + CELL_NINE)
    step, plan = notebook.names["step"], notebook.names["plan"]
    assert pw.FsdpPlan.load("8b.json") == plan
    assert step.with_plan(plan).timeline().exposed <= step.timeline().exposed


def test_cells_ten_to_twelve_from_two_thousand_devices_to_a_figure(notebook, tmp_path, capsys) -> None:
    notebook.ok(BEFORE_TEN + CELL_TEN)
    big = notebook.names["big"]
    assert big.islands == (2048,)
    assert big.events.of_kind("compute")["devices"].tolist() == [2048] * big.summary().launches
    notebook.ok('pw.attach("cpu", islands=1, devices_per_island=4)\n' + BEFORE_ELEVEN + CELL_ELEVEN)
    assert "events matched, 0 and 0 without partner" in capsys.readouterr().out
    real, twin = notebook.names["real"], notebook.names["twin"]
    assert pw.compare(real, twin).difference.only_a == pw.compare(real, twin).difference.only_b == 0
    notebook.ok(BEFORE_TWELVE + CELL_TWELVE)
    table = np.genfromtxt("sweep.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    assert [(row["n"], row["policy"]) for row in table] == [(n, p) for n in (64, 512, 2048) for p in ("fifo", "stride")]
    assert (table["makespan"] > 0).all()
    svg = (tmp_path / "fig3.svg").read_text()
    assert 'width="3.3in"' in svg
    assert "2048 dev" in svg
    assert pw.load("fig3.run").summary() == big.summary()
