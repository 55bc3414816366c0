"""Where the user wrote something, in the words of a notebook or a script."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from pathways_nb.plan.source_lines import describe, line_of, traceback_line, users_traceback


def test_a_line_of_a_cell_is_known_also_where_an_earlier_kernel_compiled_its_text(monkeypatch):
    cells = {"/tmp/ipykernel_7/123.py": 4}
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map=cells))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert describe("/tmp/ipykernel_7/123.py", 2) == "Cell In[4], line 2"
    assert describe("/tmp/ipykernel_5/123.py", 2) == "Cell In[4], line 2", "a program that JAX kept has this name"
    assert describe("/tmp/ipykernel_5/9.py", 2) == "9.py:2"
    assert describe("/home/me/123.py", 2) == "123.py:2"


def test_a_traceback_is_shown_also_where_an_entry_has_no_line() -> None:
    def fails() -> None:
        raise KeyboardInterrupt

    # As an instruction that Python adds to a loop, at which an interrupt may arrive.
    fails.__code__ = fails.__code__.replace(co_linetable=b"")
    try:
        fails()
    except KeyboardInterrupt as error:
        traceback = error.__traceback__
    assert traceback is not None
    assert traceback.tb_next is not None
    entry = traceback.tb_next
    assert entry.tb_lineno is None
    assert line_of(entry) == fails.__code__.co_firstlineno
    shown = users_traceback(traceback)
    assert shown is not None
    assert shown.tb_next is not None
    assert shown.tb_next.tb_lineno == fails.__code__.co_firstlineno
    assert traceback_line(traceback) == f"test_source_lines.py:{fails.__code__.co_firstlineno}"
