"""Bokeh views of runs, and the widget that carries them into a notebook.

Views draw from ``pathways_nb.trace`` and ``pathways_nb.plan`` alone; all colours are in ``palette``.
"""

from pathways_widgets.curve import curve
from pathways_widgets.live import LiveDisplay, LiveFigure
from pathways_widgets.page import page
from pathways_widgets.panel import figure_of
from pathways_widgets.tradeoff import tradeoff

__all__ = ["LiveDisplay", "LiveFigure", "curve", "figure_of", "page", "tradeoff"]
