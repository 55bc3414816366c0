"""Options of XLA for what runs once or never: machine code that is made quickly."""

from __future__ import annotations

import functools
from types import MappingProxyType
from typing import Any

import jax

_WISHED: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}


@functools.cache
def quick_options() -> MappingProxyType[str, Any]:
    """Return options that halve the time of compiling for CPU; those that this JAX lacks are left out.

    The passes of the partitioner stay the usual ones. Which options there are is tried once, on a constant.
    """
    known = dict(_WISHED)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        lowered = jax.jit(lambda: 0).lower()
    while known:
        try:
            lowered.compile(compiler_options=dict(known))
            break
        except jax.errors.JaxRuntimeError as error:
            # JAX refuses all options if it does not know one; the error names that one.
            unknown = [name for name in known if name in str(error)]
            if not unknown:
                raise
        for name in unknown:
            del known[name]
    return MappingProxyType(known)
