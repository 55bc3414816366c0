"""Compiler options of published runs, by name, each with its source.

Options are those of ``jax.stages.Lowered.compile(compiler_options=…)``: names of XLA's flags, and Python's numbers and
truth values.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pathways_nb.errors import UsageError, nearest


class Preset(NamedTuple):
    """Options of a published run.

    Args:
        options: of the compiler, by name.
        source: where they were published.
    """

    options: Mapping[str, Any]
    source: str


_FUSED_GATHERS = {
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
    "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
    "xla_tpu_overlap_compute_collective_tc": True,
    "xla_enable_async_all_gather": True,
}
_DATA_PARALLEL = {
    "xla_tpu_enable_data_parallel_all_reduce_opt": True,
    "xla_tpu_data_parallel_opt_different_sized_ops": True,
}
_LAYOUTS = {
    "xla_tpu_use_minor_sharding_for_major_trivial_input": True,
    "xla_tpu_relayout_group_size_threshold_for_reduce_scatter": 1,
    "xla_tpu_assign_all_reduce_scatter_layout": True,
}
_MIB = 2**20

PRESETS: Mapping[str, Preset] = MappingProxyType({
    "nvidia-maxtext": Preset(
        {
            "xla_gpu_all_reduce_combine_threshold_bytes": 2048 * _MIB,
            "xla_gpu_all_gather_combine_threshold_bytes": 2048 * _MIB,
            "xla_gpu_reduce_scatter_combine_threshold_bytes": 32 * _MIB,
            "xla_gpu_enable_pipelined_all_gather": True,
            "xla_gpu_enable_pipelined_reduce_scatter": True,
            "xla_gpu_enable_pipelined_all_reduce": True,
            "xla_gpu_enable_while_loop_double_buffering": True,
            "xla_gpu_enable_highest_priority_async_stream": True,
        },
        "NVIDIA's dgxc-benchmarking, maxtext/llama2-70b configure.sh; from 512 GPUs on the last threshold is 16 MiB",
    ),
    "maxtext-v4": Preset({"xla_enable_async_all_gather": True}, "MaxText, configs/tpu/v4"),
    "maxtext-v5p": Preset({**_FUSED_GATHERS, **_DATA_PARALLEL}, "MaxText, configs/tpu/v5p"),
    "maxtext-v6e": Preset(
        {"xla_tpu_scoped_vmem_limit_kib": 98304, **_FUSED_GATHERS, **_DATA_PARALLEL, **_LAYOUTS},
        "AI-Hypercomputer's tpu-recipes, training/trillium",
    ),
})  # fmt: skip
"""The presets by name."""


def preset(name: str) -> dict[str, Any]:
    """Return the compiler options of a published run.

    Args:
        name: of a preset, such as ``"nvidia-maxtext"``.

    Raises:
        UsageError: there is none of this name; the nearest are named.
    """
    if name not in PRESETS:
        near = ", ".join(map(repr, nearest(name, PRESETS) or PRESETS))
        raise UsageError(f"preset({name!r}): there are no such compiler options; there is {near}.")
    return dict(PRESETS[name].options)
