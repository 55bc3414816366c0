"""A Jupyter-embedded single controller for parallelism in machine learning, after the Pathways paper.

This module is the public API: it only re-exports names from the packages below it, and a test checks that ``__all__``
is complete and that every name is documented. Import it as ``pw``. The packages are listed in the README from the
ground up; each imports only those before it.
"""

from jax.sharding import PartitionSpec as P

from pathways_nb.adopt.adopted_step import AdoptedStep, adopt
from pathways_nb.adopt.adopting_record import record
from pathways_nb.adopt.attached_step import AttachedStep
from pathways_nb.attach.attach import attach, reset
from pathways_nb.calibration.calibrate import calibrate, calibration
from pathways_nb.comparisons.rank_orders import check_orders
from pathways_nb.comparisons.run_comparison import Comparison, compare
from pathways_nb.compilers.disk_cache import CompilerCache, compiler_cache
from pathways_nb.controller.decisions import Decision, WaitingCall
from pathways_nb.controller.orders import OrderCheck
from pathways_nb.controller.policies import policy
from pathways_nb.cost.calibration.calibrated import Calibration
from pathways_nb.cost.hardware.chips import Chip, chip
from pathways_nb.cost.hardware.networks import Network, network
from pathways_nb.course.answer_check import check
from pathways_nb.errors import (
    CancelledError,
    LostError,
    NodeError,
    NotAttachedError,
    OutOfMemoryError,
    PathwaysError,
    PlaceError,
    PlanError,
    PolicyError,
    ScheduleError,
    ShardingError,
    UsageError,
)
from pathways_nb.experiments.predict import predict
from pathways_nb.experiments.sweep import Sweep, sweep
from pathways_nb.notebook.magics import load_ipython_extension
from pathways_nb.parallel import terapipe
from pathways_nb.parallel.batch_walk.mean import mean
from pathways_nb.parallel.fsdp.front_end import fsdp
from pathways_nb.parallel.fsdp.fsdp_plan import Bucket, FsdpPlan
from pathways_nb.parallel.fsdp.passes.pass_registry import register_pass
from pathways_nb.parallel.fsdp.step import FsdpStep
from pathways_nb.parallel.fsdp.step_explorer import FsdpExplorer, explore_fsdp
from pathways_nb.parallel.pipelines.pipeline import Pipeline, pipeline
from pathways_nb.parallel.pipelines.token_context import Context
from pathways_nb.parallel.schedule_explorer import ScheduleExplorer, explore_schedules
from pathways_nb.parallel.schedules.registry import register_schedule, schedules
from pathways_nb.parallel.schedules.schedule import Schedule, schedule
from pathways_nb.parallel.stage_cuts import Stages, stages
from pathways_nb.plan.graph import Graph
from pathways_nb.plan.virtual_slice import VirtualSlice, virtual_slice
from pathways_nb.program.all_reduce import all_reduce
from pathways_nb.program.computation import Computation, jit, shard_map
from pathways_nb.program.host_function import HostFunction, host
from pathways_nb.program.timed_work import work
from pathways_nb.results.decision_explorer import DecisionExplorer, Decisions
from pathways_nb.results.last_runs import compare_reruns
from pathways_nb.results.opened_runs import load, runs
from pathways_nb.results.picture_style import style
from pathways_nb.results.policy_replay_player import PolicyReplay, ReplayExplorer
from pathways_nb.results.run import Run
from pathways_nb.session.calls.client import get, profile, put, wait
from pathways_nb.session.calls.program import Program, program
from pathways_nb.session.checkpoints.saved_state import restore_state, save_state
from pathways_nb.session.controller_handle import Controller
from pathways_nb.session.diagnosis import doctor
from pathways_nb.session.elasticity import inject_fault
from pathways_nb.session.futures import Future
from pathways_nb.session.show_sharding import show_sharding
from pathways_nb.session.tenant_scope import Tenant, client
from pathways_nb.shardings.layout import Layout
from pathways_nb.shardings.reshard import Reshard
from pathways_nb.trace.causality.breakdown import Idle
from pathways_nb.trace.causality.critical_path import CriticalPath, Slack
from pathways_nb.trace.causality.what_if import WhatIf
from pathways_nb.trace.causality.why import Why
from pathways_nb.trace.overhead import Overhead

__all__ = [
    "AdoptedStep",
    "AttachedStep",
    "Bucket",
    "Calibration",
    "CancelledError",
    "Chip",
    "Comparison",
    "CompilerCache",
    "Computation",
    "Context",
    "Controller",
    "CriticalPath",
    "Decision",
    "DecisionExplorer",
    "Decisions",
    "FsdpExplorer",
    "FsdpPlan",
    "FsdpStep",
    "Future",
    "Graph",
    "HostFunction",
    "Idle",
    "Layout",
    "LostError",
    "Network",
    "NodeError",
    "NotAttachedError",
    "OrderCheck",
    "OutOfMemoryError",
    "Overhead",
    "P",
    "PathwaysError",
    "Pipeline",
    "PlaceError",
    "PlanError",
    "PolicyError",
    "PolicyReplay",
    "Program",
    "ReplayExplorer",
    "Reshard",
    "Run",
    "Schedule",
    "ScheduleError",
    "ScheduleExplorer",
    "ShardingError",
    "Slack",
    "Stages",
    "Sweep",
    "Tenant",
    "UsageError",
    "VirtualSlice",
    "WaitingCall",
    "WhatIf",
    "Why",
    "adopt",
    "all_reduce",
    "attach",
    "calibrate",
    "calibration",
    "check",
    "check_orders",
    "chip",
    "client",
    "compare",
    "compare_reruns",
    "compiler_cache",
    "doctor",
    "explore_fsdp",
    "explore_schedules",
    "fsdp",
    "get",
    "host",
    "inject_fault",
    "jit",
    "load",
    "load_ipython_extension",
    "mean",
    "network",
    "pipeline",
    "policy",
    "predict",
    "profile",
    "program",
    "put",
    "record",
    "register_pass",
    "register_schedule",
    "reset",
    "restore_state",
    "runs",
    "save_state",
    "schedule",
    "schedules",
    "shard_map",
    "show_sharding",
    "stages",
    "style",
    "sweep",
    "terapipe",
    "virtual_slice",
    "wait",
    "work",
]
