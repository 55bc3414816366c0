"""The files of a saved state: arrays by Orbax (TensorStore below it), the layout of the tree as JSON beside them.

Orbax reads and writes arrays of several PJRT clients in one process as they are, shard by shard: no device and no host
buffer ever has a whole array that is sharded on both sides, except one that is kept with padding, which is cropped on
the host. Two of its defaults are not used. It would slice replicated arrays on their devices to write the parts in
parallel, which are launches that the controller does not know of; and it would compare trees by its own rules, so
arrays are stored by name in one flat dict, which Orbax alone can read, too.

Orbax is an optional extra, imported when it is needed.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pathways_nb.errors import UsageError
from pathways_nb.session.checkpoints.state_layout import Layout
from pathways_nb.util.host_info import machine
from pathways_nb.util.json_text import DamagedError, Field, parse

_ARRAYS, _ABOUT, _FORMAT = "arrays", "state.json", 1
"""Folder of Orbax's checkpoint, file of the layout, and the version of that file."""


def orbax(call: str) -> Any:
    """Return Orbax's checkpoint module.

    Args:
        call: what needs it, for the error.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import orbax.checkpoint as ocp
    except ImportError:
        raise UsageError(f"{call} needs Orbax: pip install 'pathways_nb[checkpoint]'.") from None
    return ocp


def write(path: Path, layout: Layout, arrays: Mapping[str, Any], overwrite: bool) -> None:
    """Write a state: into a hidden folder beside ``path``, which takes its name when everything is in it.

    Args:
        path: of the folder.
        layout: of the tree.
        arrays: JAX or NumPy arrays, by name.
        overwrite: whether an older state there is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}"
    unfinished.mkdir()
    try:
        if arrays:
            _save(unfinished / _ARRAYS, arrays)
        about = {
            "format": _FORMAT,
            "versions": {**machine(), "orbax-checkpoint": version("orbax-checkpoint")},
            **layout.as_json(),
        }
        (unfinished / _ABOUT).write_text(json.dumps(about, indent=1))
        _rename(unfinished, path, overwrite)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def check_free(path: Path, overwrite: bool) -> None:
    """Refuse a path that exists, unless it has a saved state that may be replaced.

    Raises:
        UsageError: naming what is there.
    """
    if not path.exists():
        return
    if not overwrite:
        raise UsageError(f"save_state({str(path)!r}): the path exists. Pass another one, or overwrite=True.")
    if not (path / _ABOUT).is_file():
        raise UsageError(
            f"save_state({str(path)!r}, overwrite=True): what is there is no saved state and is not replaced. "
            f"Pass another path, or remove it yourself."
        )


def read_layout(path: Path) -> Layout:
    """Return the layout of a saved state.

    Raises:
        FileNotFoundError: there is no such folder.
        UsageError: what is there is no saved state, or a damaged one.
    """
    if not path.exists():
        raise FileNotFoundError(f"restore_state({str(path)!r}): there is no such path.")
    try:
        about = Field(parse((path / _ABOUT).read_text()))
        about["format"].whole(_FORMAT, _FORMAT)
        return Layout.from_json(about)
    except (OSError, ValueError, RecursionError) as error:
        why = f"{_ABOUT}: {error}" if isinstance(error, DamagedError) else f"it has no readable {_ABOUT}"
        raise UsageError(f"restore_state({str(path)!r}): that is no state that pw.save_state wrote ({why}).") from None


class Wanted(NamedTuple):
    """How an array is read.

    Args:
        sharding: of the ``jax.Array`` to make; ``None`` for a NumPy array.
        dtype: of the ``jax.Array``.
        padded: its shape, if zeros are to follow the saved values; ``None`` for the saved one.
    """

    sharding: Any
    dtype: Any
    padded: tuple[int, ...] | None = None


def read(path: Path, wanted: Mapping[str, Wanted]) -> dict[str, Any]:
    """Return arrays of a saved state.

    Args:
        path: of the state's folder.
        wanted: by name.

    Raises:
        UsageError: Orbax cannot read the files.
    """
    if not wanted:
        return {}
    ocp = orbax("restore_state")
    how = {
        name: ocp.RestoreArgs(restore_type=np.ndarray)
        if one.sharding is None
        else ocp.ArrayRestoreArgs(
            sharding=one.sharding, dtype=one.dtype, global_shape=one.padded, strict=one.padded is None
        )
        for name, one in wanted.items()
    }
    asked = ocp.args.PyTreeRestore(dict.fromkeys(wanted, 0), restore_args=how, partial_restore=True)
    try:
        with ocp.Checkpointer(_handler(ocp)) as checkpointer:
            return checkpointer.restore((path / _ARRAYS).absolute(), args=asked)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"restore_state({str(path)!r}): its arrays cannot be read: {error}") from error


def _save(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays as one checkpoint of Orbax."""
    ocp = orbax("save_state")
    with ocp.Checkpointer(_handler(ocp)) as checkpointer:
        checkpointer.save(path.absolute(), args=ocp.args.PyTreeSave(dict(arrays)))


def _handler(ocp: Any) -> Any:
    """Return a handler of trees whose arrays are written without a launch on their devices."""
    from jax import Array

    kinds = ocp.type_handlers
    registry = kinds.create_type_handler_registry(
        (Array, kinds.ArrayHandler(use_replica_parallel=False)), (np.ndarray, kinds.NumpyHandler())
    )
    return ocp.PyTreeCheckpointHandler(type_handler_registry=registry)


def _rename(unfinished: Path, path: Path, overwrite: bool) -> None:
    """Give a finished folder its name; an older state is moved away before and removed after."""
    check_free(path, overwrite)
    old = unfinished.with_name(f"{unfinished.name}.old")
    if path.exists():
        os.rename(path, old)
    try:
        os.rename(unfinished, path)
    except OSError:
        if old.exists():
            os.rename(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)
