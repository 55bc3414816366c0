"""Bokeh views of runs and schedules, and the widget that carries them into a notebook.

Views read ``pathways_nb.trace``, ``pathways_nb.plan`` and plain protocols only, so they draw saved, simulated and real
runs alike. Every colour is in ``drawing.palette``. Anything that a script without a notebook would need is computed in
``pathways_nb``, not here.
"""

from pathways_widgets.explorers.curve import curve
from pathways_widgets.explorers.thumbnails import thumbnails
from pathways_widgets.explorers.tradeoff import tradeoff
from pathways_widgets.figures.live import LiveFigure
from pathways_widgets.figures.live_display import LiveDisplay
from pathways_widgets.figures.page import page
from pathways_widgets.figures.panel import figure_of

__all__ = ["LiveDisplay", "LiveFigure", "curve", "figure_of", "page", "thumbnails", "tradeoff"]
