"""Bokeh views of runs, and the widget that carries them into a notebook.

Views draw from ``pathways_nb.trace`` and ``pathways_nb.plan`` alone; all colours are in ``palette``.
"""

from pathways_widgets.explorers.curve import curve
from pathways_widgets.explorers.tradeoff import tradeoff
from pathways_widgets.figures.live import LiveDisplay, LiveFigure
from pathways_widgets.figures.page import page
from pathways_widgets.figures.panel import figure_of

__all__ = ["LiveDisplay", "LiveFigure", "curve", "figure_of", "page", "tradeoff"]
