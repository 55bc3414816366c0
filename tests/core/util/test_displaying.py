"""Which front end there is, and what an object shows in marimo; with a stand-in for it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pathways_nb.util import displaying
from pathways_nb.util.displaying import ShowsItself
from pathways_widgets.figures import output


@pytest.fixture
def marimo(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A marimo that runs a cell; what is appended to the cell is in ``cell``."""
    cell: list[Any] = []
    stand_in = SimpleNamespace(
        running_in_notebook=lambda: True,
        output=SimpleNamespace(append=cell.append),
        vstack=lambda parts: ["stack", *parts],
        plain_text=lambda text: f"text {text}",
        cell=cell,
    )
    monkeypatch.setitem(sys.modules, "marimo", stand_in)
    return stand_in


class Picture(ShowsItself):
    """Shows some parts."""

    def __init__(self, *parts: str):
        self.parts = parts

    def show(self) -> None:
        for part in self.parts:
            displaying.append_in_marimo(part)

    def __repr__(self) -> str:
        return "a picture"


def test_a_script_has_no_front_end(fresh_python) -> None:
    done = fresh_python("""
        import sys
        from pathways_nb.util import displaying
        print(displaying.shows_figures(), displaying.ipython_shell(), displaying.marimo_notebook())
        print("marimo" in sys.modules)
    """)
    assert done.stdout == "False None None\nFalse\n", done.stderr


def test_what_is_shown_while_a_cell_runs_is_appended_to_it(marimo) -> None:
    assert displaying.shows_figures()
    Picture("one", "two").show()
    assert marimo.cell == ["one", "two"]


def test_what_a_cell_ends_with_is_returned(marimo) -> None:
    assert Picture("one", "two")._display_() == ["stack", "one", "two"]
    assert Picture()._display_() == "text a picture"
    assert marimo.cell == []


def test_marimo_gets_the_widget_and_no_still_picture(marimo) -> None:
    assert output.put_out({"text/plain": "words"}, widget="widget") is None
    assert output.put_out({"text/plain": "words"}) is None
    assert output.show_still(lambda: pytest.fail("drawn"), "words") is None
    assert marimo.cell == ["widget", "text words"]


def test_what_an_old_kernel_lacks_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []
    shell = SimpleNamespace(kernel="a kernel")
    monkeypatch.setattr(output, "ipython_shell", lambda: shell)
    monkeypatch.setattr(output, "display", lambda bundle, **_: shown.append(bundle))
    monkeypatch.setattr(output, "_told", set())
    new, old = SimpleNamespace(_reply_subshell_for="main"), SimpleNamespace()
    output.answer_while_busy(new)
    assert new._reply_subshell_for is None
    output.answer_while_busy(old)
    assert vars(old) == {}
    for comm in (new, old, old):
        output.tell_what_waits(comm)
    (line,) = shown
    assert "pan, zoom and taps are answered when the cell has ended" in line["text/plain"]
    assert "pip install &#x27;ipykernel&gt;=7.4&#x27;" in line["text/html"]
