"""Large pictures: the graph of ten thousand nodes, folded, and the timeline of ten thousand devices.

Each is timed from the run of its cell to the painted figure; its run is made in the cell before.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp

import pathways_nb as pw

CELLS = {
    "fold_seconds_10k_nodes": (
        "from pathways_nb.bench._large_pictures import many_nodes\nrun = many_nodes(10_000)",
        "run.show('graph')",
    ),
    "draw_seconds_10k_devices": (
        "from pathways_nb.bench.display import synthetic\nrun = synthetic(400_000, islands=(2_500,) * 4, nodes=4)",
        "run.show('timeline')",
    ),
}
"""By figure: a cell that makes a run, and the one that shows it."""
_STAGES = 8
_HAS_RUN = "/\\[\\d+\\]/.test(document.querySelector('.jp-CodeCell .jp-InputPrompt')?.textContent)"
_RUN_NEXT = "() => { jupyterapp.commands.execute('notebook:run-cell-and-select-next') }"


def many_nodes(count: int) -> pw.Run:
    """Return a simulated run of a pipeline: microbatches go forward over eight stages and back, on four islands.

    Args:
        count: number of nodes, about.
    """
    pw.attach("sim:tpu_v5p:4x4")
    places = [pw.virtual_slice(4, island=stage // 2) for stage in range(_STAGES)]
    forward = [pw.jit(lambda x: jnp.tanh(x @ x), on=place) for place in places]
    backward = [pw.jit(lambda x, g: g @ x.T + x, on=place) for place in places]
    for stage in range(_STAGES):
        forward[stage].name, backward[stage].name = f"forward {stage}", f"backward {stage}"

    def step(x: Any) -> list[Any]:
        results = []
        for _ in range(count // (2 * _STAGES)):
            kept = [x]
            for one in forward:
                kept.append(one(kept[-1]))
            gradient = kept.pop()
            for one in reversed(backward):
                gradient = one(kept.pop(), gradient)
            results.append(gradient)
        return results

    with pw.record() as run:
        pw.wait(pw.program(step, name="pipeline")(jax.ShapeDtypeStruct((256, 256), jnp.float32)))
    return run


def seconds(page: Any, ready: str) -> float:
    """Return the seconds from the run of the page's second cell to its painted figure.

    Args:
        page: a notebook of two cells; ``painted`` is defined.
        ready: JavaScript that is true while the kernel is idle.
    """
    page.evaluate(_RUN_NEXT)
    # A kernel that answers something else meanwhile is idle for a moment, too: the cell's number says that it has run.
    page.wait_for_function(_HAS_RUN, timeout=300_000)
    page.wait_for_function(ready, timeout=300_000)
    began = time.monotonic()
    page.evaluate(_RUN_NEXT)
    page.wait_for_function("painted(1)", timeout=120_000, polling="raf")
    return time.monotonic() - began
