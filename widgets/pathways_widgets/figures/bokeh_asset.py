"""The widget that carries BokehJS from the installed package to the browser: nothing is loaded from a network."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, ClassVar

import anywidget
import bokeh
import traitlets

from pathways_nb.util.displaying import marimo_notebook
from pathways_widgets.figures.page import bokeh_source


class BokehJS(anywidget.AnyWidget):
    """Carries BokehJS from the installed package to the browser: one for each kernel, never displayed.

    Figures refer to it by id, so the script of about a megabyte is not sent again with each of them. Of an app that
    marimo runs, each page has a thread of this process and needs one of its own.
    """

    _esm = "export default {}"
    version = traitlets.Unicode(bokeh.__version__).tag(sync=True)
    src = traitlets.List(traitlets.Unicode()).tag(sync=True)
    _of_kernel: ClassVar[Any] = SimpleNamespace(only=None)
    _of_page: ClassVar[Any] = threading.local()

    @classmethod
    def get(cls) -> BokehJS:
        """Return the one of this kernel, or of this page of marimo's; a new one if it was closed."""
        in_marimo = marimo_notebook() is not None
        kept = cls._of_page if in_marimo else cls._of_kernel
        found: BokehJS | None = getattr(kept, "only", None)
        # A widget that was closed has no comm: figures could not find the script by its id.
        if found is None or found.comm is None:
            found = kept.only = cls(src=[bokeh_source()])
            if in_marimo:
                # marimo closes what a cell has made before it runs the cell again; figures of other cells need this.
                found.comm.close = lambda **_: None
        return found
