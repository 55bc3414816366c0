"""The notebook's door, in a real IPython: the documentation's cells one to four, twice; errors at the right line; nothing in Out."""

from __future__ import annotations

import inspect
import re
import traceback

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

import pathways_nb as pw
from pathways_nb.notebook.magic_options import attach_parser
from tests.support.api_cells import cell
from tests.support.notebook import Notebook

CELL_ONE = cell(1)
CELL_TWO = cell(2)
CELL_THREE = cell(3)
CELL_FOUR = cell(4)
MORE = """\
import numpy as np, jax.numpy as jnp
v = np.arange(8, dtype=np.float32)

@pw.jit(on=right, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
def b(v): return v * 2

@pw.jit(on=left)
def predict(w, x): return x @ w

@pw.jit(on=right)
def loss_of(h, y): return jnp.mean((h - y) ** 2)

@pw.program
def train_step(params, batch):
    loss, grads = jax.value_and_grad(lambda w: loss_of(predict(w, batch[0]), batch[1]))(params)
    return params - 0.1 * grads, loss

rng = np.random.default_rng(0)
xs = rng.normal(size=(200, 16, 4)).astype(np.float32)
def batch(i): return xs[i], xs[i] @ np.arange(4, dtype=np.float32)
params = np.zeros(4, np.float32)
"""


@pytest.fixture
def notebook(controller, monkeypatch):
    book = Notebook()
    yield book
    book.shell.user_ns.clear()
    InteractiveShell.clear_instance()


@pytest.fixture
def ready(notebook):
    notebook.ok(CELL_ONE)
    notebook.ok(CELL_TWO + MORE)
    return notebook


def test_cells_one_to_four_all_of_them_twice(notebook, capsys, controller) -> None:
    """Run in order twice: everything may be run again, the second time with nothing to compile."""
    for _ in range(2):
        notebook.ok(CELL_ONE)
        notebook.ok(CELL_TWO)
        notebook.ok(MORE)
        notebook.ok(CELL_THREE)
        np.testing.assert_allclose(notebook.names["y"].result(), (np.arange(8) - 3.5) * 2)
        capsys.readouterr()
        notebook.ok(CELL_FOUR)
        lines = re.findall(r"^(\d+) (\d+\.\d+(?:e-\d+)?)$", capsys.readouterr().out, re.M)
        assert [int(i) for i, _ in lines] == list(range(0, 200, 20))
        assert float(lines[-1][1]) < float(lines[0][1]) / 1000
        np.testing.assert_allclose(notebook.names["params"].result(), np.arange(4), atol=1e-2)


def test_each_cell_twice_in_a_row(notebook) -> None:
    for source in (CELL_ONE, CELL_TWO, MORE, CELL_THREE, CELL_FOUR):
        notebook.ok(source)
        notebook.ok(source)
    np.testing.assert_allclose(notebook.names["y"].result(), (np.arange(8) - 3.5) * 2)


def test_nothing_is_kept_in_out(ready, controller) -> None:
    ready.ok("%%pathways --show none\nx = a(v)\nx")
    ready.ok("%%pathways --show none\na(v)")
    assert not [value for value in ready.names["Out"].values() if isinstance(value, pw.Future)]
    assert ready.last.result is None


def test_the_last_expression_is_displayed_unless_silenced(ready, capsys) -> None:
    ready.ok("%%pathways --show none\nx = a(v)\nx")
    assert "<future a: float32[8]" in capsys.readouterr().out
    ready.ok("%%pathways --show none\nx;")
    assert "future" not in capsys.readouterr().out
    ready.ok("%%pathways --show none\nNone")
    assert "None" not in capsys.readouterr().out


def test_a_cell_is_ordinary_python(ready, capsys) -> None:
    ready.ok(
        "%%pathways --show none\n"
        "def helper(n):\n    return [a(v) for _ in range(n)]\n"
        "ys = helper(2)\n"
        "total = sum(float(y.result().sum()) for y in ys)\n"
        "%precision 3\n"
        "text = f'{total:.1f}'\n"
    )
    assert ready.names["text"] in ("0.0", "-0.0")
    assert len(ready.names["ys"]) == 2
    ready.ok("assert helper(1)[0].shape == (8,)")


def test_load_ext_alone_gives_a_working_default(fresh_python) -> None:
    done = fresh_python("""
    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()
    for cell in ("%load_ext pathways_nb",
                 "import pathways_nb as pw, numpy as np\\nf = pw.jit(lambda v: v * 2, on=pw.virtual_slice(4))",
                 "%%pathways --show none\\ny = f(np.ones(4))", "print(y.result())"):
        shell.run_cell(cell, store_history=True).raise_error()
    """)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "[2. 2. 2. 2.]"), done.stderr[-2000:]


def test_pathways_before_attach_and_without_the_extension_s_default(fresh_python) -> None:
    done = fresh_python("""
    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()
    import pathways_nb as pw
    from pathways_nb.notebook.magics import PathwaysMagics
    shell.register_magics(PathwaysMagics)
    result = shell.run_cell("%%pathways --show none\\n1", store_history=True)
    print(type(result.error_in_exec).__name__, result.error_in_exec)
    """)
    assert 'NotAttachedError nothing is attached: call pw.attach("auto") first' in done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "--show bad",
            "there is no view 'bad'; choose from graph, timeline, critical, ops, modules, memory, categories or none",
        ),
        (
            "--shows none",
            "unrecognized arguments: --shows none. Did you mean '--show'?\nUsage: %%pathways [--show graph,timeline] [--run NAME]",
        ),
        ("--show", "argument --show: expected one argument"),
        ("--run", "argument --run: expected one argument"),
        ("extra", "unrecognized arguments: extra"),
        ("--run 'open", "No closing quotation"),
    ],
)
def test_unknown_options_name_the_known_ones(ready, line, text) -> None:
    error = ready.fails(f"%%pathways {line}\nx = a(v)")
    assert type(error).__name__ == "UsageError"
    assert text in str(error)
    assert "%pathways" in str(error)
    ready.ok("%%pathways --show none\nx = a(v)")


def test_options_are_text_and_never_code(ready) -> None:
    ready.ok("touched = []")
    for option in (
        "--run {touched.append(1)}",
        "--run $touched",
        "--run 'touched.append(1)'",
        "--show none --run __import__('os')",
    ):
        ready.ok(f"%%pathways --show none {option}\nx = a(v)")
    assert ready.names["touched"] == []


def test_a_syntax_error_points_at_its_line_in_the_cell(ready) -> None:
    error = ready.fails("%%pathways --show none\nx = a(v)\ny = = b(x)\n")
    assert isinstance(error, SyntaxError)
    assert (error.lineno, (error.text or "").strip()) == (3, "y = = b(x)")


@pytest.mark.parametrize("bad", ["1 / 0", "a(np.arange(6.))", "y = a(v) + 1", "jax.grad(lambda v: a(v).sum())(v)"])
def test_an_error_points_at_its_line_in_the_cell(ready, bad, capsys) -> None:
    error = ready.fails(f"%%pathways --show none\nx = a(v)\n\n{bad}\ny = b(x)")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in ready.shell.compile._filename_map]
    assert 4 in {frame.lineno for frame in frames}
    assert f"Cell In[{ready.number}], line 4" in capsys.readouterr().out
    ready.ok("%%pathways --show none\nx = a(v)")


def test_blank_lines_at_the_top_of_a_cell_count(ready, capsys) -> None:
    ready.fails("%%pathways --show none\n\n\n1 / 0")
    assert f"Cell In[{ready.number}], line 4" in capsys.readouterr().out


def test_an_error_inside_a_function_of_an_earlier_cell(ready, capsys) -> None:
    ready.ok("def broken(v):\n    w = a(v)\n    raise KeyError('gone')")
    first = ready.number
    error = ready.fails("%%pathways --show none\nbroken(v)")
    assert isinstance(error, KeyError)
    out = capsys.readouterr().out
    assert f"Cell In[{first}], line 3" in out
    assert f"Cell In[{ready.number}], line 2" in out


def test_nodes_and_donations_name_their_cells(ready) -> None:
    ready.ok("%%pathways --show none --run named\nx = a(v)\n\ny = b(x)")
    number = ready.number
    ready.ok("with pw.record() as run:\n    z = train_step(np.zeros(4, np.float32), batch(0))")
    lines = {str(line) for line in ready.names["run"].events.of_kind("compute")["line"]}
    assert all(re.fullmatch(r"Cell In\[\d+\], line \d+", line) for line in lines), lines
    assert number < ready.number
    ready.ok("take = pw.program(lambda w: a(w), donate_argnums=0)\nw = a(v)")
    ready.ok("%%pathways --show none\nx = a(v)\nu = take(w)")
    with pytest.raises(pw.LostError, match=re.escape(f"was donated at Cell In[{ready.number}], line 3")):
        ready.names["w"].result()


def test_top_level_await_is_refused_with_the_fix(ready) -> None:
    error = ready.fails("%%pathways --show none\nx = a(v)\nawait x")
    assert str(error) == (
        "%%pathways: top-level await is not possible in a recorded cell. Write y.result() instead of await y, "
        "or await in a cell without the magic."
    )
    ready.ok("%%pathways --show none\nx = a(v)")
    ready.ok("y = await x")
    np.testing.assert_allclose(ready.names["y"], np.arange(8) - 3.5)


def test_await_inside_a_function_of_a_cell_is_fine(ready) -> None:
    ready.ok(
        "%%pathways --show none\nimport asyncio\nasync def get(y):\n    return await y\nz = asyncio.run(get(a(v)))"
    )
    np.testing.assert_allclose(ready.names["z"], np.arange(8) - 3.5)


def test_the_line_magic(ready, capsys) -> None:
    ready.ok("x = a(v)\nx.result()")
    capsys.readouterr()
    ready.ok("%pathways status")
    assert "place left: island 0, dev 0–3" in capsys.readouterr().out
    ready.ok("%pathways")
    assert "2 islands × 4 devices" in capsys.readouterr().out
    ready.ok("%pathways attach cpu --islands 2 --devices-per-island 4")
    assert ready.names["x"].result() is not None
    ready.ok("%pathways reset")
    assert isinstance(ready.fails("x.result()"), pw.LostError)
    ready.ok("x = a(v)")
    error = ready.fails("%pathways nothing")
    assert "argument action: invalid choice: 'nothing'" in str(error)
    error = ready.fails("%pathways attach cpu --devices 3")
    assert "unrecognized arguments: --devices 3" in str(error)
    assert "Usage: %pathways attach [--islands N] [--devices-per-island N]" in str(error)
    error = ready.fails("%pathways attach sim chip=tpu_v3 devices_per_island=32")
    assert "unrecognized arguments: chip=tpu_v3 devices_per_island=32. Write --chip tpu_v3.\n" in str(error)
    assert "arguments: chips=tpu_v3. Did you mean '--chip'?\n" in str(ready.fails("%pathways attach sim chips=tpu_v3"))


@pytest.mark.parametrize(("line", "text"), [
    ("%pathways --help", "{attach,calibrate,status,reset}"), ("%pathways attach --help", "--islands N"),
    ("%pathways calibrate --help", "%pathways calibrate [--quick]"),
    ("%%pathways --help\nx = a(v)", "--run NAME"),
])  # fmt: skip
def test_help_is_printed(ready, capsys, line, text) -> None:
    ready.ok(line)
    assert text in capsys.readouterr().out
    assert "x" not in ready.names


def test_calibrating_shows_what_was_found(ready, capsys, monkeypatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr("pathways_nb.notebook.magics.calibrate", lambda quick: asked.append(quick) or "found")
    ready.ok("%pathways calibrate\n%pathways calibrate --quick")
    assert asked == [False, True]
    assert capsys.readouterr().out.count("found") == 2
    assert "unrecognized arguments: --slow" in str(ready.fails("%pathways calibrate --slow"))


def test_a_named_run_can_be_reached_afterwards(ready) -> None:
    ready.ok("%%pathways --show none --run mine\nx = a(v)")
    ready.ok("assert len(pw.runs['mine'].events.of_kind('compute')) == 1")
    ready.ok("%%pathways --show none --run mine\nx, y = a(v), a(v)")
    ready.ok("assert len(pw.runs['mine'].events.of_kind('compute')) == 2")
    ready.ok("%pathways reset")
    ready.ok("assert not pw.runs")


def test_a_cell_may_be_a_tenants(ready) -> None:
    ready.ok("ann = pw.client('ann', share=3)")
    ready.ok("%%pathways --show none --run hers --client ann\nx = a(v)")
    ready.ok("assert list(pw.runs['hers'].events.of_kind('compute')['client']) == ['ann']")
    ready.ok("assert pw.attach('cpu', islands=2, devices_per_island=4).machine.clients['ann'].share == 3")


def test_a_run_that_is_not_there_names_those_that_are(ready) -> None:
    ready.ok("%%pathways --show none --run mine\nx = a(v)")
    with pytest.raises(pw.UsageError, match=r"pw\.runs\['nope'\]: there is no run of that name\. Known: 'mine'"):
        _ = pw.runs["nope"]


def test_a_profiled_cell_has_exact_stamps(ready) -> None:
    ready.ok("%%pathways --show none --run exact --profile\nx = a(v)")
    ready.ok("assert pw.runs['exact'].stamps.matched == 1")
    ready.ok("%%pathways --show none --run other\nx = a(v)")
    ready.ok("assert pw.runs['other'].stamps is None")


def test_the_line_magic_attaches_as_the_function_does(ready, capsys) -> None:
    ready.ok("%pathways attach cpu --islands 1 --devices-per-island 2 --dispatch sequential --no-pin")
    assert "<controller cpu: 1 island × 2 devices, sequential dispatch>" in capsys.readouterr().out
    ready.ok("%pathways attach cpu --dcn-latency 0.001")
    assert "2 islands × 4 devices, parallel dispatch, messages take 1 ms>" in capsys.readouterr().out
    error = ready.fails("%pathways attach cpu --dispatch fast")
    assert "attach(dispatch='fast'): choose one of" in str(error)
    ready.ok(CELL_ONE)


def test_the_line_magic_attaches_simulated_devices_with_every_option_of_attach(ready) -> None:
    ready.ok(
        "%pathways attach sim --chip tpu_v5p --network tpu_dcn --islands 2 --devices-per-island 8 --topology 2x2x2 "
        "--devices-per-host 2 --noise 0.1 --seed 7 --values --hbm 1e9 --policy fifo"
    )
    ready.ok("from pathways_nb.session import default_controller\nthere = default_controller.get()")
    ready.ok(
        "assert there is pw.attach('sim', chip='tpu_v5p', network='tpu_dcn', islands=2, devices_per_island=8, "
        "topology=(2, 2, 2), devices_per_host=2, noise=0.1, seed=7, values=True, hbm=1e9, policy='fifo')"
    )
    ready.ok("%pathways attach sim:tpu_v3:4x32")
    ready.ok(CELL_ONE)


def test_every_option_of_attach_is_one_of_the_line_magic() -> None:
    options = set(vars(attach_parser().parse_args([])))
    assert options == set(inspect.signature(pw.attach).parameters)
    text = attach_parser().help_text()
    for option in options - {"kind", "pin"}:
        assert f"--{option.replace('_', '-')}" in text.split("\n", 1)[1]


@pytest.mark.parametrize(("line", "text"), [
    ("sim --chp tpu_v3", "unrecognized arguments: --chp tpu_v3. Did you mean '--chip'?"),
    ("sim --topologie=4x4", "unrecognized arguments: --topologie=4x4. Did you mean '--topology'?"),
    ("sim --chip tpu_v3 --topology round", "argument --topology: 'round': write how many chips there are along each"),
    ("sim --chip tpu_v3 --noise much", "argument --noise: invalid float value: 'much'"),
    ("sim --chip tpu_v5", "tpu_v5p"),
    ("smi --chip tpu_v3", "'gpu', 'tpu', 'sim', 'ray'. Did you mean 'sim'?"),
    ("cpu --chip tpu_v3", "attach('cpu', chip='tpu_v3'): chip is for simulated devices"),
    ("cpu --dispatch sequentially", "Did you mean 'sequential'?"), ("cpu --policy fif", "Did you mean 'fifo'?"),
])  # fmt: skip
def test_what_is_misspelt_in_attach_is_told_with_what_was_meant(ready, line, text) -> None:
    assert text in str(ready.fails(f"%pathways attach {line}"))


def test_a_misspelt_action_is_told_with_what_was_meant(ready) -> None:
    assert "Did you mean 'attach'?" in str(ready.fails("%pathways atach sim"))


def test_a_run_that_is_shown_is_displayed_in_the_cell(ready) -> None:
    from IPython.utils.capture import capture_output

    with capture_output() as captured:
        ready.ok(CELL_THREE)
    assert captured.outputs
    data = [output.data for output in captured.outputs]
    assert any("text/plain" in bundle for bundle in data)


def test_the_magic_costs_the_users_names_nothing(ready) -> None:
    before = set(ready.names)
    ready.ok("%%pathways --show none\nfresh = a(v)")
    assert set(ready.names) - before - {f"_i{ready.number}", "_i", "_ii", "_iii"} == {"fresh"}


def test_a_cell_that_is_run_again_says_what_has_changed_unless_that_is_unwanted(notebook, capsys) -> None:
    notebook.ok("%load_ext pathways_nb")
    notebook.ok(
        "import pathways_nb as pw\npw.attach('sim', chip='tpu_v3', islands=1, devices_per_island=2)\n"
        "place = pw.virtual_slice(2)\n"
        "def made(seconds): return pw.program(pw.work(seconds, on=place, name='total'), name='p')\nprogram = made(4e-3)"
    )
    cell = "%%pathways --show timeline --run mine\nprogram().wait();"
    notebook.ok(cell)
    assert "last time" not in pw.runs["mine"].headline()
    notebook.ok("program = made(1e-3)")
    notebook.ok(cell)
    said = pw.runs["mine"].headline().splitlines()[-1]
    assert re.fullmatch(r"\d\.\d times as fast as last time: `total` takes 3 ms less", said)
    notebook.ok("pw.compare_reruns(False)")
    notebook.ok(cell)
    notebook.ok("pw.compare_reruns(True)")
    assert "last time" not in pw.runs["mine"].headline()
    notebook.ok(cell.replace("--show timeline", "--show none"))
    assert pw.runs["mine"].last_time is None, "without a picture nothing is compared"
