"""The files of a saved state: arrays by Orbax (TensorStore below it), the layout of the tree as JSON beside them.

The JSON file has a digest of every file and of itself (see ``state_digests``), so that a damaged state is refused.

Orbax reads and writes arrays of several PJRT clients in one process as they are, shard by shard: no device and no host
buffer ever has a whole array that is sharded on both sides, except one that is kept with padding, which is cropped on
the host. Two of its defaults are not used. It would slice replicated arrays on their devices to write the parts in
parallel, which are launches that the controller does not know of; and it would compare trees by its own rules, so
arrays are stored by name in one flat dict, which Orbax alone can read, too.

Orbax is an optional extra, imported when it is needed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pathways_nb.errors import UsageError, both_ends, size
from pathways_nb.session.checkpoints import state_digests, state_folders
from pathways_nb.session.checkpoints.saved_layout import SavedLayout
from pathways_nb.util.host_info import machine
from pathways_nb.util.json_text import DamagedError, Field, parse, said
from pathways_nb.util.words import counted

_ARRAYS, _ABOUT, _FORMAT, _UNCHECKED = "arrays", "state.json", 2, 1
"""Folder of Orbax's checkpoint, file of the layout, its format, and that of the time before digests."""
_LONG = 300
"""Characters of a path that errors repeat."""
_LONGEST = 255 - len(".") - len(".12345678.old")
"""Bytes of a folder's name that leave room for its hidden ones."""
_FULL = {errno.ENOSPC, errno.EDQUOT}


def called(call: str, path: Path, more: str = "") -> str:
    """Return a call as errors name it; of a very long path both ends."""
    return f"{call}({both_ends(str(path), _LONG)!r}{more})"


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


def write(path: Path, layout: SavedLayout, arrays: Mapping[str, Any], overwrite: bool) -> None:
    """Write a state: into a hidden folder next to ``path``, which takes that name when everything is on the disk.

    Args:
        path: of the folder.
        layout: of the tree.
        arrays: JAX or NumPy arrays, by name.
        overwrite: whether an older state there is replaced.

    Raises:
        OSError: the files cannot be written; there is no space, for example.
    """
    with state_folders.unfinished(path) as folder:
        try:
            if arrays:
                _save(folder / _ARRAYS, arrays)
            about = {
                "format": _FORMAT,
                "versions": {**machine(), "orbax-checkpoint": version("orbax-checkpoint")},
                **layout.as_json(),
                "files": state_digests.of_files(folder),
            }
            (folder / _ABOUT).write_text(state_digests.sealed(about))
            # Digests first, then everything to the disk: the name that follows must stand for whole files.
            state_folders.sync(folder)
        except (OSError, ValueError) as error:
            raise _unwritten(path, error, arrays) from error
        check_free(path, overwrite)  # again: it took a while
        state_folders.take_name(folder, path)


def _unwritten(path: Path, error: Exception, arrays: Mapping[str, Any]) -> Exception:
    """Return the error of a state that could not be written."""
    code = error.errno if isinstance(error, OSError) else None
    if code not in _FULL and not any(os.strerror(one) in str(error) for one in _FULL):  # TensorStore has no code
        return error
    need, free = sum(array.nbytes for array in arrays.values()), shutil.disk_usage(path.parent).free
    kept = "the state saved there before, which is as it was" if path.exists() else "what is there"
    return OSError(
        code or errno.ENOSPC,
        f"{called('save_state', path)}: no space is left on the disk. The state has {size(need)} before "
        f"compression, which must fit beside {kept}; {size(free)} are free. Remove something, or save to another disk.",
    )


def claim(path: Path, overwrite: bool) -> None:
    """Check that a state may be saved under a path, and clear away what an interrupted save left for it.

    Raises:
        UsageError: naming what is there.
    """
    length = max(len(os.fsencode(part)) for part in ("", *path.parts))
    if length > _LONGEST or "\0" in str(path):
        why = f"a part of it has {length} bytes, and the most are {_LONGEST}" if length > _LONGEST else "it has a NUL"
        raise UsageError(f"{called('save_state', path)}: no folder can have that name: {why}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    state_folders.recover(path)
    check_free(path, overwrite)


def check_free(path: Path, overwrite: bool) -> None:
    """Refuse a path that exists, unless it has a saved state that may be replaced.

    Raises:
        UsageError: naming what is there.
    """
    what = called("save_state", path, ", overwrite=True" if overwrite else "")
    if path.is_symlink():
        raise UsageError(
            f"{what}: the path is a link to {os.readlink(path)!r}, and a link is not replaced. Pass the "
            f"folder it leads to, or remove the link."
        )
    if not path.exists():
        return
    if not overwrite:
        raise UsageError(f"{what}: the path exists. Pass another one, or overwrite=True.")
    if not (path / _ABOUT).is_file():
        raise UsageError(
            f"{what}: what is there is no saved state and is not replaced. Pass another path, or remove it yourself."
        )


def find(path: Path) -> Path:
    """Return where a saved state lies; warns if a crash left it under a hidden name.

    Raises:
        FileNotFoundError: there is none.
    """
    found, what = state_folders.find(path), called("restore_state", path)
    if not os.path.exists(found):  # also of a name that is too long
        complete = [one.name for one in state_folders.left(path) if (one / _ABOUT).is_file()]
        offer = (
            f" An interrupted save left {complete[0]!r} beside it; restore_state opens that, too." if complete else ""
        )
        raise FileNotFoundError(f"{what}: there is no such path.{offer}")
    if found != path:
        warnings.warn(
            f"{what}: a save was interrupted between two renames. Its state lies in {found.name!r} beside it and "
            f"is read from there; the next save_state to the path gives it its name again.", RuntimeWarning,
            stacklevel=3,
        )  # fmt: skip
    return found


def version_of(path: Path) -> bytes:
    """Return what tells a state from the one that replaced it: its JSON file, which has the digests of all others."""
    try:
        return (path / _ABOUT).read_bytes()
    except OSError:
        return b""


def read_layout(path: Path) -> SavedLayout:
    """Return the layout of a saved state; warns if it is so old that its files cannot be checked.

    Raises:
        UsageError: what is there is no saved state, or a damaged one.
    """
    what = called("restore_state", path)
    try:
        about = _about(path)
        layout = SavedLayout.from_json(about)
    except (OSError, ValueError, RecursionError) as error:
        why = f"{_ABOUT}: {error}" if isinstance(error, DamagedError) else f"it has no readable {_ABOUT}"
        raise UsageError(f"{what}: that is no state that pw.save_state wrote ({why}).") from None
    if about["format"].value == _UNCHECKED:
        warnings.warn(
            f"{what}: the state is older than digests, so it cannot be checked whether its files are as they were "
            f"written. Save it again to have them.", RuntimeWarning, stacklevel=4,
        )  # fmt: skip
    return layout


def _about(path: Path) -> Field:
    """Return what the JSON file of a state has, compared with its digest unless it is older than those."""
    about = Field(parse((path / _ABOUT).read_text()))
    if about["format"].whole(_UNCHECKED, _FORMAT) != _UNCHECKED or "digest" in about.table():
        state_digests.check_seal(about)
    return about


def check_files(path: Path, names: Iterable[str]) -> None:
    """Compare the files of a state with their digests, unless it is so old that it has none.

    Args:
        path: of the state's folder.
        names: of the leaves that will be read, to say which of them are damaged.

    Raises:
        UsageError: files are damaged; names them, and the leaves whose values lie in them.
    """
    what = called("restore_state", path)
    try:
        about = _about(path)
        changed = state_digests.changed_files(path, about["files"]) if about["format"].value != _UNCHECKED else {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{what}: {_ABOUT}: {said(error)}.") from None
    if changed:
        (first, why), *others = changed.items()
        leaves = _leaves_in(path, changed, names)
        more = f", and {counted(len(others), 'other file')} as well" if others else ""
        lost = ", ".join(leaves[:3]) + (", …" if leaves[3:] else "") if leaves else "no value of a leaf"
        raise UsageError(
            f"{what}: the state is damaged: its file {first} {why}{more}. This concerns {lost}. Restore another copy."
        )


def _leaves_in(path: Path, files: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the leaves that cannot be read without some files."""
    hidden, lost = {path / file for file in files}, []

    def link(file: str, name: str) -> None:
        if Path(file) not in hidden:
            os.symlink(os.path.abspath(file), name)

    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(OSError):  # of all arrays, the folder itself is lost
            shutil.copytree(path / _ARRAYS, Path(folder) / _ARRAYS, copy_function=link)
        # Which files an array lies in, only TensorStore knows: it is asked with the damaged files missing.
        for name in names:
            with contextlib.suppress(Exception):  # as in ``read``
                if _load(Path(folder), {name: Wanted(None)}):
                    continue
            lost.append(name)
    return lost


class Wanted(NamedTuple):
    """How an array is read.

    Args:
        sharding: of the ``jax.Array`` to make; ``None`` for a NumPy array.
        padded: its shape, if zeros are to follow the saved values; ``None`` for the saved one.
    """

    sharding: Any
    padded: tuple[int, ...] | None = None


def read(path: Path, wanted: Mapping[str, Wanted]) -> dict[str, Any]:
    """Return arrays of a saved state.

    Args:
        path: of the state's folder.
        wanted: by name; those that the files do not have are left out.

    Raises:
        UsageError: the files are damaged, or Orbax cannot read them.
    """
    check_files(path, wanted)
    if not wanted:
        return {}
    try:
        return _load(path, wanted)
    except Exception as error:  # Orbax raises that, too, of what it was told by TensorStore
        raise UsageError(f"{called('restore_state', path)}: its arrays cannot be read: {said(error)}") from error


def _load(path: Path, wanted: Mapping[str, Wanted]) -> dict[str, Any]:
    """Read arrays of a checkpoint of Orbax."""
    ocp = orbax("restore_state")
    how = {
        name: ocp.RestoreArgs(restore_type=np.ndarray)
        if one.sharding is None
        else ocp.ArrayRestoreArgs(sharding=one.sharding, global_shape=one.padded, strict=one.padded is None)
        for name, one in wanted.items()
    }
    asked = ocp.args.PyTreeRestore(dict.fromkeys(wanted, 0), restore_args=how, partial_restore=True)
    with ocp.Checkpointer(_handler(ocp)) as checkpointer:
        found = checkpointer.restore((path / _ARRAYS).absolute(), args=asked)
    # Of an array that it does not have, Orbax returns what stands for it in the question.
    return {name: value for name, value in found.items() if not isinstance(value, int)}


def _save(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays as one checkpoint of Orbax."""
    ocp = orbax("save_state")
    with _told_once(), ocp.Checkpointer(_handler(ocp)) as checkpointer:
        checkpointer.save(path.absolute(), args=ocp.args.PyTreeSave(dict(arrays)))


@contextlib.contextmanager
def _told_once() -> Iterator[None]:
    """Keep Orbax from logging an error that it raises as well: a traceback for each of its threads.

    Yields:
        Nothing.
    """
    logger = logging.getLogger("absl")
    logger.addFilter(_is_no_thread)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_thread)


def _is_no_thread(record: logging.LogRecord) -> bool:
    return "_SignalingThread" not in record.getMessage()


def _handler(ocp: Any) -> Any:
    """Return a handler of trees whose arrays are written without a launch on their devices."""
    from jax import Array

    kinds = ocp.type_handlers
    registry = kinds.create_type_handler_registry(
        (Array, kinds.ArrayHandler(use_replica_parallel=False)), (np.ndarray, kinds.NumpyHandler())
    )
    return ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
