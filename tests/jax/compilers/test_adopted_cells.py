"""``%%pathways --adopt`` and ``pw.record(adopt=…)`` for chips that are not here, by those chips' compilers."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell

import pathways_nb as pw
from tests.support.notebook import Notebook

SETUP = """\
%load_ext pathways_nb
import pathways_nb as pw
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
put = lambda array, *spec: jax.device_put(array, NamedSharding(mesh, P(*spec)))
w, x = put(jnp.ones((1024, 4096)), "data", "model"), put(jnp.ones((512, 1024)), "data")

@jax.jit
def train_step(w, x):
    loss, gradient = jax.value_and_grad(lambda w: (jnp.tanh(x @ w) ** 2).sum())(w)
    return w - 1e-3 * gradient, loss
"""


@pytest.fixture
def notebook(controller):
    book = Notebook()
    book.ok(SETUP)
    yield book
    book.shell.user_ns.clear()
    InteractiveShell.clear_instance()


def test_a_cell_shows_its_steps_on_a_chip(notebook, capsys):
    notebook.ok(
        "%%pathways --adopt gpu_h100_sxm --mesh data=8,model=2 --run seen\nfor _ in range(2):\n    w, loss = train_step(w, x)\nfloat(loss)"
    )
    said = capsys.readouterr().out
    (step,) = pw.runs["seen"].adopted
    assert (step.name, step.mesh, step.chip_name) == ("train_step", {"data": 8, "model": 2}, "gpu_h100_sxm")
    assert f"{step.summary}; called 2 times" in said
    rows = step.collectives().rows
    assert {row.kind for row in rows} >= {"all-gather"}
    # Lines of a cell are named as the notebook names them.
    assert all(row.line in ("Cell In[1], line 11", "") for row in rows), rows
    assert "Cell In[1], line 11" in said
    assert "all-gather" in said
    assert float(notebook.names["loss"]) > 0


def test_what_is_not_adopted_says_why_and_runs(notebook, capsys):
    notebook.ok("%%pathways --adopt gpu_h100_sxm\nprint(jax.jit(lambda v: v + 1)(1.0))")
    said = capsys.readouterr().out
    assert "2.0" in said
    assert "<lambda> was called and is not adopted: adopt: no argument is on a mesh" in said
    notebook.ok("%%pathways --adopt gpu_h100_sxm\njnp.mean(x)")
    assert "No jitted function of yours was called in this cell." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--mesh data=8", "--mesh and --options are for --adopt CHIP"),
        ("--adopt gpu_h100_sxm --mesh data", "write the devices along each axis, such as data=16,model=8"),
    ],
)
def test_options_that_do_not_fit(notebook, line, text, capsys):
    assert text in str(notebook.fails(f"%%pathways {line}\n1"))


def test_an_unknown_chip_is_named_before_the_cell_runs(notebook):
    error = notebook.fails("%%pathways --adopt gpu_h100\nran = True")
    assert "gpu_h100_sxm" in str(error)
    assert "ran" not in notebook.names


def test_a_script_adopts_what_a_block_calls(notebook):
    notebook.ok("""
with pw.record(adopt="tpu_v5p:2x2x2", mesh={"data": 4, "model": 2}) as run:
    train_step(w, x)
(step,) = run.adopted
assert step.devices == 8 and step.seconds > 0 and step.collectives().rows
try:
    pw.record(mesh={"data": 4}).__enter__()
except pw.UsageError as error:
    assert "are for adopt=" in str(error)
""")
