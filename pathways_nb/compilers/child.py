"""The process that compiles: a script that reads a request, compiles, and writes what it can say about the end.

It runs alone, ``python child.py FOLDER``, and imports nothing of this project, so that the compilers' packages can be
put before everything else. The compiler itself dumps the scheduled program and its memory into ``FOLDER/dump`` long
before it has finished its code; ``compiling`` reads them and ends this process.

In ``FOLDER``: ``request.json`` and ``program.bin`` are read; ``devices.json`` (where each partition lies) and, if
something fails, ``error.json`` are written.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any


def main(folder: Path) -> None:
    """Compile what the folder asks for.

    Args:
        folder: with the request.
    """
    request = json.loads((folder / "request.json").read_text())
    os.environ.update(request["environment"])
    if request["search_path"]:
        sys.path.insert(0, request["search_path"])
    stage = "start"
    try:
        import jax
        import numpy as np
        from jax import export
        from jax.experimental import mesh_utils, topologies
        from jax.sharding import AxisType, Mesh

        stage = "topology"
        described = topologies.get_topology_desc(platform=request["platform"], **_tuples(request["topology"]))
        devices = list(described.devices)
        if len(devices) != request["devices"]:
            raise ValueError(f"the compiler sees {len(devices)} devices, not {request['devices']}")
        names, sizes, kinds = zip(*request["mesh"], strict=True)
        if (
            math.prod(sizes) == len(devices)
            and request["platform"] == "tpu"
            and "num_slices" not in request["topology"]
        ):
            # The assignment of jax.make_mesh: axes of the mesh along axes of the torus.
            placed = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
        else:
            placed = np.array(devices[: math.prod(sizes)]).reshape(sizes)
        mesh = Mesh(placed, names, axis_types=tuple(AxisType[kind] for kind in kinds))
        (folder / "devices.json").write_text(json.dumps([_place(one) for one in placed.flat]))

        stage = "lower"
        exported = export.deserialize(bytearray((folder / "program.bin").read_bytes()))
        shardings = exported.in_shardings_jax(mesh)
        flat = [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
            for aval, sharding in zip(exported.in_avals, shardings, strict=True)
        ]
        arguments, _ = jax.tree.unflatten(exported.in_tree, flat)
        jitted = jax.jit(exported.call, donate_argnums=tuple(request["donated"]), keep_unused=True)
        lowered = jitted.lower(*arguments)

        stage = "compile"
        options = {"xla_dump_to": str(folder / "dump"), "xla_dump_hlo_as_text": True, **request["options"]}
        lowered.compile(compiler_options=options)
        _wait_for_files(folder / "dump")
    except Exception as error:
        (folder / "error.json").write_text(
            json.dumps({"stage": stage, "kind": type(error).__name__, "text": str(error)})
        )
        # No clean-up: a compiler that failed may wait for its own threads for ever.
        os._exit(1)
    os._exit(0)


def _wait_for_files(dump: Path, most: float = 10.0) -> None:
    """Wait until the dump's files do not change any more: a compiler may write them in threads of its own.

    Args:
        dump: the folder.
        most: seconds to wait at most.
    """
    before, end = None, time.monotonic() + most
    while time.monotonic() < end:
        now = sorted((path.name, path.stat().st_size) for path in dump.glob("*"))
        if now and now == before:
            return
        before = now
        time.sleep(0.1)


def _tuples(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with tuples for JSON's lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}


def _place(device: Any) -> dict[str, Any]:
    """Return where a device is: the host, and of a TPU its coordinates, core and slice."""
    return {
        "process": device.process_index,
        "coords": list(getattr(device, "coords", None) or ()),
        "core": getattr(device, "core_on_chip", 0),
        "slice": getattr(device, "slice_index", 0) or 0,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
