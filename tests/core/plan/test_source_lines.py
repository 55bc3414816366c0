"""Where the user wrote something, in the words of a notebook or a script."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from pathways_nb.plan.source_lines import describe


def test_a_line_of_a_cell_is_known_also_where_an_earlier_kernel_compiled_its_text(monkeypatch):
    cells = {"/tmp/ipykernel_7/123.py": 4}
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map=cells))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert describe("/tmp/ipykernel_7/123.py", 2) == "Cell In[4], line 2"
    assert describe("/tmp/ipykernel_5/123.py", 2) == "Cell In[4], line 2", "a program that JAX kept has this name"
    assert describe("/tmp/ipykernel_5/9.py", 2) == "9.py:2"
    assert describe("/home/me/123.py", 2) == "123.py:2"
