"""The table of simulated over compiled memory: ``python -m tests.jax.cost.memory_table [part of a name]``.

In half precision the compiler's figure is that of CPU devices, which keep float32 copies; the simulator's is less.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import pathways_nb as pw
from pathways_nb.cost.hlo.quick_compiling import cpu_devices
from tests.support.memory_cases import CASES, MESHES, gradient, table


class Peaks(NamedTuple):
    """Bytes on each device: arguments, outputs and temporaries, and where those of the simulator are from."""

    simulated: int
    compiled: int
    basis: str

    @property
    def ratio(self) -> float:
        """The simulator's over the compiler's."""
        return self.simulated / self.compiled


def peaks(name: str, mesh: str, size: int, dtype: Any, options: Mapping[str, Any] | None = None) -> Peaks:
    """What ``value_and_grad`` of a case needs, as the simulator has it and as XLA's analysis has it.

    Args:
        name, mesh, size, dtype: as in the table. options: of the compiler.
    """
    case, sizes = CASES[name], MESHES[mesh]
    args, specs = case.on(tuple(sizes), size, dtype)
    step = gradient(case)
    bytes, basis = simulated(step, args, specs, sizes)
    return Peaks(bytes, compiled(step, args, specs, sizes, options), basis)


def simulated(step: Any, args: Sequence[Any], specs: Any, sizes: Mapping[str, int]) -> tuple[int, str]:
    """The peak of a program of one node on simulated devices, and what its event says of it."""
    with pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=math.prod(sizes.values())):
        place = pw.virtual_slice(tuple(sizes.values()), axes=tuple(sizes))
        node = pw.jit(step, on=place, in_shardings=specs)
        program = pw.program(lambda *args: node(*args), name="step")
        (peak,) = program.peaks(*args)
        events = program.run(*args).events.of_kind("compute", "collective")
        return peak.bytes, str(events["basis"][0])


def compiled(step: Any, args: Sequence[Any], specs: Any, sizes: Mapping[str, int], options: Any = None) -> int:
    """What XLA's analysis says that the same code needs on as many CPU devices, as ``jax.jit`` compiles it."""
    mesh = mesh_of(sizes)
    laid = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda x: isinstance(x, P))
    lowered = jax.jit(step, in_shardings=laid, keep_unused=True).lower(*args)
    found = lowered.compile(compiler_options=dict(options or {})).memory_analysis()
    assert found is not None
    return int(found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes)


def mesh_of(sizes: Mapping[str, int]) -> Mesh:
    """A mesh of CPU devices on which nothing runs."""
    count = math.prod(sizes.values())
    devices = np.array(cpu_devices(count)[:count]).reshape(tuple(sizes.values()))
    return Mesh(devices, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def main(part: str = "") -> None:
    """Print a row for each case, mesh, size and dtype whose name holds ``part``."""
    print(f"{'function':32}{'mesh':10}{'size':>5} {'dtype':9}{'simulated':>12}{'compiled':>12}  ratio  basis of memory")
    ratios = []
    for name, mesh, size, dtype in table():
        if part in name:
            found = peaks(name, mesh, size, dtype)
            ratios.append(found.ratio)
            about = next(text for text in found.basis.split("; ") if text.startswith("memory "))
            print(
                f"{name:32}{mesh:10}{size:5} {np.dtype(dtype).name:9}{found.simulated:12,}{found.compiled:12,}"
                f"{found.ratio:7.2f}  {about.removeprefix('memory ')}",
                flush=True,
            )
    print(f"{len(ratios)} rows, ratios from {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
