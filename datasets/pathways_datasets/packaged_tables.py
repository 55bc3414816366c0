"""Tables that come with the package: chips and networks, and results of papers; each figure with its origin.

The numbers are JSON; their units and allowed values are declared by the classes that read them, in
``pathways_nb.cost.hardware``.
"""

from __future__ import annotations

import gzip
import json
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any


def hardware() -> dict[str, Any]:
    """Return the table ``hardware.json``: under ``"chips"`` and ``"networks"``, by name, the parameters of each.

    Returns:
        Each parameter as [value, kind of origin, source], in SI units.
    """
    return json.loads(files("pathways_datasets").joinpath("hardware.json").read_text("utf-8"))


def compilers() -> dict[str, Any]:
    """Return the table ``compilers.json``: what XLA's compilers for GPUs and TPUs are told about each chip.

    Returns:
        Under ``"gpu_common"`` and ``"gpu"`` fields of XLA's ``GpuTargetConfigProto``, by name of the chip, in bytes,
        bytes/s and GHz; under ``"tpu"`` arguments of ``jax.experimental.topologies``, by name of the topology.
    """
    return json.loads(files("pathways_datasets").joinpath("compilers.json").read_text("utf-8"))


def launch_constants() -> dict[str, Any]:
    """Return the table ``launch_constants.json``, which ``pathways_nb.cost.launch.constants`` reads.

    Returns:
        By kind of chip, chip and software stack, each constant as [value, low, high, kind of origin, source].
    """
    return json.loads(files("pathways_datasets").joinpath("launch_constants.json").read_text("utf-8"))


def published_steps() -> list[dict[str, Any]]:
    """Return the training steps that others measured, ``measured_steps.json``.

    Returns:
        A list of rows: ``id``, ``family``, ``source``, ``stack`` (``"jax"`` or ``"torch"``), ``chip``, ``devices``,
        ``mesh`` (sizes of dp, fsdp and tp), ``optimizer_shards``, ``schedule``, ``model``, ``seq`` (tokens), ``batch``
        (sequences of a step), ``accumulate``, ``precision``, ``remat``, ``step_seconds``, ``peak_memory`` ([number,
        unit]), ``grade`` (``"A"``: fully stated, ``"B"``: one or two settings assumed) and ``notes``.
    """
    return json.loads(files("pathways_datasets").joinpath("measured_steps.json").read_text("utf-8"))


def published(paper: str) -> dict[str, Any]:
    """Return the results that a paper reports, by figure and name.

    Each has a value in SI units, its unit, how it was read, and what it says where its name does not. The tag
    ``"recalled"`` marks numbers that were not checked against the paper; code that prints one says so.

    Args:
        paper: ``"pathways"`` or ``"terapipe"``.

    Raises:
        ValueError: there is no such table.
    """
    # Through importlib, because a package may be installed as an archive.
    found = files("pathways_datasets").joinpath(f"published_{paper}.json")
    if not found.is_file():
        here = sorted(entry.name for entry in files("pathways_datasets").iterdir())
        # From the folder, so that a table that is added needs no second list.
        known = [name[len("published_") : -len(".json")] for name in here if name.startswith("published_")]
        raise ValueError(f"published({paper!r}): there is no such table; there is {', '.join(map(repr, known))}.")
    return json.loads(found.read_text("utf-8"))


def recorded(name: str) -> bytes:
    """Return the bytes of a file that a real accelerator or compiler wrote; ``recorded_files`` says what it holds.

    Args:
        name: of the file, such as ``"h200_plain_step.xplane.pb"``.

    Raises:
        ValueError: there is no such file.
    """
    if name not in (known := recorded_files()):
        raise ValueError(f"recorded({name!r}): there is no such file; there is {', '.join(map(repr, known))}.")
    return gzip.decompress(files("pathways_datasets").joinpath("recorded", f"{name}.gz").read_bytes())


def h200_seconds() -> dict[str, float]:
    """Return the seconds that single operations took on one H200: products, additions, transfers and launches."""
    text = files("pathways_datasets").joinpath("recorded", "h200_seconds.json").read_text("utf-8")
    return json.loads(text)["seconds"]


def recorded_files() -> dict[str, dict[str, Any]]:
    """Return by name what each file of ``recorded`` holds: the program, the devices, versions and source."""
    text = files("pathways_datasets").joinpath("recorded", "index.json").read_text("utf-8")
    return {name.removesuffix(".gz"): about for name, about in json.loads(text).items()}


def recorded_steps() -> list[str]:
    """Return the names of compiled texts of steps, ``STEP.DEVICES.FINGERPRINT``; ``make records`` writes them."""
    folder = _steps_folder()
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return [name.removesuffix(".json.gz") for name in names if name.endswith(".json.gz")]


def recorded_step(fingerprint: str) -> bytes | None:
    """Return the compressed texts of a step; None if there are none.

    Args:
        fingerprint: of the step, as ``pathways_nb.adopt`` computes it.
    """
    for name in recorded_steps():
        if name.endswith(f".{fingerprint}"):
            return _steps_folder().joinpath(f"{name}.json.gz").read_bytes()
    return None


def _steps_folder() -> Traversable:
    return files("pathways_datasets").joinpath("recorded", "steps")
