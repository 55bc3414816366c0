"""A Jupyter-embedded single controller for parallelism in machine learning, after the Pathways paper."""

from jax.sharding import PartitionSpec as P

from pathways_nb.attach import attach, reset
from pathways_nb.attached import Controller
from pathways_nb.calls import get, profile, put, record, wait
from pathways_nb.comparison import Comparison, compare
from pathways_nb.course import check
from pathways_nb.errors import (
    CancelledError,
    LostError,
    NodeError,
    NotAttachedError,
    PathwaysError,
    PlaceError,
    PolicyError,
    ShardingError,
    UsageError,
)
from pathways_nb.futures import Future
from pathways_nb.magics import load_ipython_extension
from pathways_nb.program.computation import Computation, jit, shard_map
from pathways_nb.program.graph import Graph
from pathways_nb.program.places import VirtualSlice, virtual_slice
from pathways_nb.program.program import Program, program
from pathways_nb.run import Run, runs, style
from pathways_nb.saved import load
from pathways_nb.tenants import Tenant, client

__all__ = [
    "CancelledError",
    "Comparison",
    "Computation",
    "Controller",
    "Future",
    "Graph",
    "LostError",
    "NodeError",
    "NotAttachedError",
    "P",
    "PathwaysError",
    "PlaceError",
    "PolicyError",
    "Program",
    "Run",
    "ShardingError",
    "Tenant",
    "UsageError",
    "VirtualSlice",
    "attach",
    "check",
    "client",
    "compare",
    "get",
    "jit",
    "load",
    "load_ipython_extension",
    "profile",
    "program",
    "put",
    "record",
    "reset",
    "runs",
    "shard_map",
    "style",
    "virtual_slice",
    "wait",
]
