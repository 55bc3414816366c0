"""What the tests of programs share: small computations, and graphs as text."""

from __future__ import annotations

import numpy as np

import pathways_nb as pw

v = np.arange(8, dtype=np.float32)


def on(place, fn, spec="x", **options):
    """``fn`` on a place, sharded along its first axis on the way in and out."""
    return pw.jit(fn, on=place, in_shardings=pw.P(spec), out_shardings=pw.P(spec), **options)


def first_shard(future: pw.Future) -> int:
    """Where the first shard lies in memory."""
    return future._live().addressable_shards[0].data.unsafe_buffer_pointer()


def names(graph: pw.Graph) -> list[str]:
    """``name@place`` of each node that runs, in order."""
    return [f"{node.name}@{node.place.label}" for node in graph.nodes if node.place is not None]


HANG_GUARD = """
    import faulthandler, numpy as np, jax, jax.numpy as jnp, pathways_nb as pw
    faulthandler.dump_traceback_later(280, exit=True)
    pw.attach("cpu", islands=2, devices_per_island=4)
    left, right = pw.virtual_slice(4, island=0), pw.virtual_slice(4, island=1)
    a = pw.jit(lambda v: v * 2, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    b = pw.jit(lambda v: v + 1, on=right, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    v = np.arange(8, dtype=np.float32)
"""
