"""A Jupyter-embedded single controller for parallelism in machine learning, after the Pathways paper."""

from jax.sharding import PartitionSpec as P

from pathways_nb.attach import attach, reset
from pathways_nb.attached import Controller
from pathways_nb.calibrate import calibrate, calibration
from pathways_nb.calls import get, profile, put, record, wait
from pathways_nb.comparison import Comparison, compare
from pathways_nb.controller.orders import OrderCheck, check_orders
from pathways_nb.cost.calibration import Calibration
from pathways_nb.cost.chips import Chip, chip
from pathways_nb.cost.networks import Network, network
from pathways_nb.course.check import check
from pathways_nb.elastic import inject_fault
from pathways_nb.errors import (
    CancelledError,
    LostError,
    NodeError,
    NotAttachedError,
    OutOfMemoryError,
    PathwaysError,
    PlaceError,
    PolicyError,
    ScheduleError,
    ShardingError,
    UsageError,
)
from pathways_nb.explore import ScheduleExplorer, explore_schedules
from pathways_nb.futures import Future
from pathways_nb.magics import load_ipython_extension
from pathways_nb.parallel.schedules.registry import register_schedule, schedules
from pathways_nb.parallel.schedules.schedule import Schedule, schedule
from pathways_nb.predict import predict
from pathways_nb.program.computation import Computation, jit, shard_map
from pathways_nb.program.graph import Graph
from pathways_nb.program.places import VirtualSlice, virtual_slice
from pathways_nb.program.program import Program, program
from pathways_nb.run import Run, runs, style
from pathways_nb.saved import load
from pathways_nb.sweep import Sweep, sweep
from pathways_nb.tenants import Tenant, client
from pathways_nb.trace.breakdown import Idle
from pathways_nb.trace.path import CriticalPath, Slack
from pathways_nb.trace.whatif import WhatIf
from pathways_nb.work import work

__all__ = [
    "Calibration",
    "CancelledError",
    "Chip",
    "Comparison",
    "Computation",
    "Controller",
    "CriticalPath",
    "Future",
    "Graph",
    "Idle",
    "LostError",
    "Network",
    "NodeError",
    "NotAttachedError",
    "OrderCheck",
    "OutOfMemoryError",
    "P",
    "PathwaysError",
    "PlaceError",
    "PolicyError",
    "Program",
    "Run",
    "Schedule",
    "ScheduleError",
    "ScheduleExplorer",
    "ShardingError",
    "Slack",
    "Sweep",
    "Tenant",
    "UsageError",
    "VirtualSlice",
    "WhatIf",
    "attach",
    "calibrate",
    "calibration",
    "check",
    "check_orders",
    "chip",
    "client",
    "compare",
    "explore_schedules",
    "get",
    "inject_fault",
    "jit",
    "load",
    "load_ipython_extension",
    "network",
    "predict",
    "profile",
    "program",
    "put",
    "record",
    "register_schedule",
    "reset",
    "runs",
    "schedule",
    "schedules",
    "shard_map",
    "style",
    "sweep",
    "virtual_slice",
    "wait",
    "work",
]
