"""TeraPipe's optimal slicer (Li et al., ICML 2021): which token slices a pipeline of equal stages finishes first.

``plan`` finds the optimum, ``fit`` and ``measure`` make the cost that it needs from measurements, ``published``
predicts the paper's results. All of it is arithmetic on seconds: the pipelines that run slices are elsewhere, as is the
order of their actions (``schedules``). ``pw.terapipe`` is this package.
"""

from pathways_nb.parallel.terapipe.fitted_cost import FittedCost, fit
from pathways_nb.parallel.terapipe.measuring import fit_timed, measure
from pathways_nb.parallel.terapipe.slice_planner import evaluate, plan
from pathways_nb.parallel.terapipe.slicing import Slicing
from pathways_nb.parallel.terapipe.token_explorer import TokenExplorer, explore

__all__ = ["FittedCost", "Slicing", "TokenExplorer", "evaluate", "explore", "fit", "fit_timed", "measure", "plan"]
