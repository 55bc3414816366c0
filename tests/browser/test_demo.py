"""The demo leaves an executed notebook and one page that opens with the network cut off."""

from __future__ import annotations

import re
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from pathways_nb.__main__ import main
from pathways_nb.notebook.demo import DemoError, demo
from pathways_nb.notebook.demo_page import FIGURE, render
from pathways_nb.notebook.site import fetched
from tests.support.dragging import drag

SHOW_FIGURE = f"""
import os
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource
from bokeh.plotting import figure
from IPython.display import display

source = ColumnDataSource({{"x": [1, 2, 3], "y": [4, 6, 5]}}, name="points")
drawing = figure(width=300, height=200, tools="pan,wheel_zoom,reset", name="drawing")
drawing.scatter("x", "y", source=source, size=12)
if os.environ.get("PATHWAYS_EMBED_FIGURES") == "1":
    item = json_item(drawing, "pw-test-figure")
    item |= {{"summary": "a summary", "properties": {{}}, "themes": {{"light": {{}}, "dark": {{}}}}}}
    display({{"{FIGURE}": item, "text/plain": "a figure"}}, raw=True)
display({{"text/html": "<div>the still picture</div>"}}, raw=True, metadata={{"data-pw-still": True}})
"""


def write(path, *cells):
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=list(cells)), path)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A small notebook, executed once for the tests below."""
    folder = tmp_path_factory.mktemp("demo")
    notebook = write(
        folder / "course" / "small.ipynb",
        new_markdown_cell("# A *title*\n\nand `some code`"),
        new_code_cell("print('<b>1 < 2 & 3</b>')\n'<i>' + 'value'"),
        new_code_cell(SHOW_FIGURE),
        new_code_cell("import sys, pathlib\nprint(sys.executable, pathlib.Path.cwd().name)"),
    )
    executed, page = demo(notebook, folder / "build")
    return notebook, nbformat.read(executed, as_version=4), page.read_text(), (executed, page)


def test_both_files_lie_under_out_and_the_notebook_is_untouched(made):
    notebook, content, _, (executed, page) = made
    assert executed == notebook.parent.parent / "build" / "small.ipynb"
    assert page == executed.with_suffix(".html")
    nbformat.validate(content)
    assert [cell.get("execution_count") for cell in content.cells] == [None, 1, 2, 3]
    assert not any(cell.get("outputs") for cell in nbformat.read(notebook, as_version=4).cells)


def test_cells_run_in_this_interpreter_and_in_the_notebooks_folder(made):
    assert made[1].cells[3].outputs[0].text.split() == [sys.executable, "course"]


def test_text_is_rendered_code_is_coloured_and_output_is_escaped(made):
    page = made[2]
    assert re.search(r"<h1[^>]*>A <em>title</em>", page)
    assert 'class="pw-code"' in page
    assert "&lt;b&gt;1 &lt; 2 &amp; 3&lt;/b&gt;" in page
    assert "<b>1 < 2" not in page
    assert "&#x27;&lt;i&gt;value&#x27;" in page


def test_the_figure_is_in_the_page_only_and_its_still_picture_is_not(made):
    _, content, page, _ = made
    assert "pw-test-figure" in page
    assert "the still picture" not in without_code(page)
    assert content.cells[2].outputs[0].data == {"text/plain": "a figure"}


def without_code(page: str) -> str:
    """The page without its code cells, whose source names what is looked for."""
    return re.sub(r'<div class="pw-code">.*?</div>', "", page, flags=re.DOTALL)


def test_the_page_fetches_nothing(made):
    assert '<script type="application/gzip" id="bokeh">' in made[2]
    assert [address for address in fetched(made[2]) if not address.startswith(("data:", "#"))] == []
    assert "@import" not in made[2]


@pytest.mark.browser
def test_the_figure_is_drawn_and_moves_with_the_network_cut_off(made, chromium):
    context = chromium.new_context(offline=True)
    try:
        page = context.new_page()
        requests, errors = [], []
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(made[3][1].as_uri())
        page.wait_for_function("globalThis.Bokeh?.documents?.[0]?.is_idle")
        assert page.locator(".bk-Canvas, .bk-Figure, canvas").count()
        find = "Bokeh.documents[0].get_model_by_name('drawing').x_range.start"
        before = page.evaluate(find)
        box = page.locator(".bk-Figure").first.bounding_box()
        drag(page, (box["x"] + 150, box["y"] + 80), (box["x"] + 100, box["y"] + 80))
        assert page.evaluate(find) > before
        assert errors == []
        assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    finally:
        context.close()


def test_a_failing_cell_is_named_with_its_line_and_what_ran_is_kept(tmp_path, capsys):
    notebook = write(
        tmp_path / "bad.ipynb",
        new_markdown_cell("text"),
        new_code_cell("print('before')"),
        new_code_cell("def divide(a, b):\n    return a / b\n\ndivide(1, 0)"),
        new_code_cell("print('never')"),
    )
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "bad.html").write_text("an older page")
    assert main(["demo", "--notebook", str(notebook), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr()
    assert "error: code cell 2 of 3, line 2: return a / b\nZeroDivisionError: division by zero" in said.err
    assert str(tmp_path / "out" / "bad.ipynb") in said.err
    assert said.out == ""
    cells = nbformat.read(tmp_path / "out" / "bad.ipynb", as_version=4).cells
    assert cells[1].outputs[0].text == "before\n"
    assert cells[2].outputs[0].ename == "ZeroDivisionError"
    assert cells[3].outputs == []
    assert not (tmp_path / "out" / "bad.html").exists()


def test_a_kernel_that_dies_is_named(tmp_path):
    notebook = write(tmp_path / "dies.ipynb", new_code_cell("1"), new_code_cell("import os\nos._exit(3)"))
    with pytest.raises(DemoError, match=r"kernel died in code cell 2 of 2"):
        demo(notebook, tmp_path / "out")


def test_a_missing_notebook_a_broken_one_and_its_own_folder_are_refused(tmp_path):
    with pytest.raises(DemoError, match=r"no notebook .*missing\.ipynb.*--notebook"):
        demo(tmp_path / "missing.ipynb", tmp_path / "out")
    (tmp_path / "broken.ipynb").write_text("{")
    with pytest.raises(DemoError, match=r"broken\.ipynb is not a notebook"):
        demo(tmp_path / "broken.ipynb", tmp_path / "out")
    with pytest.raises(DemoError, match="is the notebook's own folder and would replace it"):
        demo(write(tmp_path / "fine.ipynb", new_code_cell("1")), tmp_path)


def test_each_kind_of_output_is_shown_in_its_best_form():
    data = [
        {"text/plain": "<plain>"},
        {"text/plain": "no", "text/html": "<table id='t'></table>", "image/png": "UE5H"},
        {"text/plain": "no", "image/png": "UE5H"},
        {"text/plain": "no", "text/markdown": "**bold**"},
        {"text/plain": "no", "image/svg+xml": "<svg id='s'></svg>"},
    ]
    outputs = [nbformat.v4.new_output("display_data", one) for one in data]
    outputs.append(nbformat.v4.new_output("error", ename="E", evalue="v", traceback=["\x1b[31mE\x1b[0m: <v>"]))
    page = render(new_notebook(cells=[new_code_cell("", outputs=outputs)]), "t")
    for text in (
        "&lt;plain&gt;",
        "<table id='t'>",
        "base64,UE5H",
        "<strong>bold</strong>",
        "<svg id='s'>",
        "E: &lt;v&gt;",
    ):
        assert text in page
    assert page.count("UE5H") == 1
    assert ">no<" not in page


def test_a_figures_data_travels_as_json():
    item = {
        "target_id": "t",
        "root_id": "r",
        "doc": {"roots": [], "title": "</script>", "version": "3.9"},
        "version": "3.9",
    }
    cell = new_code_cell("", outputs=[nbformat.v4.new_output("display_data", {FIGURE: item})])
    page = render(new_notebook(cells=[cell]), "t")
    assert "root_id" in page
    assert '"</script>"' not in page  # a name from a user cannot end the script
