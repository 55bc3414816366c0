"""A saved state is replaced in one step: after a crash at any instant the older or the newer one is there by its name."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.errors import UsageError
from pathways_nb.session.checkpoints import state_files, state_folders
from pathways_nb.session.checkpoints.saved_layout import Leaf, SavedLayout
from tests.conftest import ROOT
from tests.jax.session.killed_saves import read_small, write_text
from tests.support.forced_interrupts import Interrupt

WAYS = pytest.mark.parametrize("exchanges", [True, False], ids=["exchange", "two renames"])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Syncs, renames, exchanges and removals, with the path of each."""
    made: list[tuple[str, str]] = []
    fsync, rename, exchange, rmtree = os.fsync, os.rename, state_folders.exchange, state_folders.shutil.rmtree

    def synced(descriptor: int) -> None:
        made.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def renamed(one: Any, other: Any) -> None:
        made.append(("rename", str(other)))
        rename(one, other)

    def exchanged(one: Path, other: Path) -> bool:
        made.append(("exchange", str(other)))
        return exchange(one, other)

    def removed(folder: Any, ignore_errors: bool) -> None:
        made.append(("remove", str(folder)))
        rmtree(folder, ignore_errors=ignore_errors)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(state_folders.os, "rename", renamed)
    monkeypatch.setattr(state_folders, "exchange", exchanged)
    monkeypatch.setattr(state_folders.shutil, "rmtree", removed)
    return made


def cannot_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system answer as a file system without the exchange does."""

    class Library:
        def renameat2(self, *args: object) -> int:
            ctypes.set_errno(errno.EINVAL)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno: Library())


def inside(calls: list[tuple[str, str]], folder: Path) -> tuple[list[str], str]:
    """Return what was synced below the hidden folder, relative to it, and its path."""
    hidden = next(path for kind, path in calls if kind == "sync" and path.endswith("state.json"))
    hidden = str(Path(hidden).parent)
    below = [os.path.relpath(path, hidden) for kind, path in calls if kind == "sync" and path.startswith(hidden)]
    return below, hidden


@WAYS
def test_everything_is_synced_before_the_names_change_and_the_names_before_the_older_one_goes(
    tmp_path: Path, calls: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    if not exchanges:
        cannot_exchange(monkeypatch)
    path, parent = tmp_path / "state", ("sync", str(tmp_path))
    pw.save_state(path, {"x": np.arange(3), "y": np.ones(4)})
    calls.clear()
    pw.save_state(path, {"x": np.arange(4), "y": np.ones(4)}, overwrite=True)
    below, hidden = inside(calls, tmp_path)
    files = [one for one in below if (path / one).is_file()]
    assert set(files) == {str(one.relative_to(path)) for one in path.rglob("*") if one.is_file()}
    for at, one in enumerate(below):  # a folder after everything in it, the state itself at the end
        assert not [later for later in below[at + 1 :] if later.startswith(f"{one}/") or one == "."]
    ours = [call for call in calls if str(tmp_path) in call[1]]
    after = ours[ours.index(("sync", hidden)) + 1 :]
    old = f"{hidden}.old"
    assert after == [parent, ("exchange", str(path))] + (
        [parent, parent, ("remove", hidden)]
        if exchanges
        else [("rename", old), parent, ("rename", str(path)), parent, parent, ("remove", old)]
    )
    assert pw.restore_state(path)["x"].tolist() == [0, 1, 2, 3]
    assert os.listdir(tmp_path) == ["state"]


def test_kills_at_every_call_and_at_random_times_leave_a_state() -> None:
    """A smaller run of the command that ``CONTRIBUTING.md`` names."""
    command = [sys.executable, "-m", "tests.jax.session.killed_saves", "--count", "2", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["every call"]["exchange"].keys() == {"older", "newer"}
    assert found["every call"]["two renames"].keys() == {"older", "newer", "newer, hidden"}
    assert found["kills"]["killed at a call"] == found["kills"]["killed at a time"] == 1


def save_as(name: str, folder: Path, state: Any) -> None:
    """Let a state have a hidden name."""
    pw.save_state(folder / "elsewhere" / "state", state)
    (folder / "elsewhere" / "state").rename(folder / name)
    (folder / "elsewhere").rmdir()


@pytest.mark.parametrize("both", [True, False])
def test_what_a_kill_between_two_renames_left_is_found_and_gets_its_name_again(tmp_path: Path, both: bool) -> None:
    path, x = tmp_path / "state", 2 if both else 1
    save_as(".state.0123abcd.old", tmp_path, {"x": 1})
    if both:
        save_as(".state.0123abcd", tmp_path, {"x": 2})
    with pytest.warns(RuntimeWarning, match=r"state'\): a save was interrupted between two renames. Its state lies in '.state.0123abcd.*' beside it and is read from there; the next save_state to the path gives it its name again."):  # fmt: skip
        assert pw.restore_state(path) == {"x": x}
    with pytest.raises(UsageError, match="the path exists. Pass another one, or overwrite=True."):
        pw.save_state(path, {"x": 3})
    assert os.listdir(tmp_path) == ["state"]
    assert pw.restore_state(path) == {"x": x}


def test_a_state_whose_save_is_between_its_two_renames_is_waited_for(tmp_path: Path) -> None:
    """Two names that cannot be exchanged: for a moment neither is there, and the older folder is locked."""
    path, older = tmp_path / "state", tmp_path / ".state.01234567.old"
    older.mkdir()
    looks: list[Path] = []

    def ends_after_three_looks(seconds: float) -> None:
        looks.append(older)
        if len(looks) == 3:
            path.mkdir()

    with state_folders._locked(older), mock.patch.object(state_folders.time, "sleep", ends_after_three_looks):
        assert state_folders.find(path) == path
    assert len(looks) == 3


def test_what_a_crash_left_is_found_by_two_readers_and_without_locks(tmp_path: Path, monkeypatch) -> None:
    path, newer, older = (tmp_path / name for name in ("state", ".state.01234567", ".state.01234567.old"))
    newer.mkdir()
    older.mkdir()
    descriptor = os.open(older, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # another reader looks
    assert state_folders.find(path) == newer
    os.close(descriptor)

    def no_locks(*asked: Any) -> None:
        raise OSError("Operation not supported")

    monkeypatch.setattr(state_folders.fcntl, "flock", no_locks)
    monkeypatch.setattr(state_folders.time, "sleep", lambda seconds: None)
    assert state_folders.find(path) == newer


def test_the_next_save_removes_what_was_left_for_its_path_only(tmp_path: Path) -> None:
    pw.save_state(tmp_path / "state", {"x": 1})
    kept = ["state", ".other.0123abcd", ".state.ABC", ".state.0123abcd.old.old", ".state.5555aaaa"]
    for name in [*kept[1:], ".state.01234567", ".state.89abcdef.old"]:
        (tmp_path / name).mkdir()
    busy = os.open(tmp_path / ".state.5555aaaa", os.O_RDONLY)
    fcntl.flock(busy, fcntl.LOCK_EX)  # as a process that still saves
    pw.save_state(tmp_path / "state", {"x": 2}, overwrite=True)
    os.close(busy)
    assert sorted(os.listdir(tmp_path)) == sorted(kept)


def test_a_first_save_that_was_killed_before_its_rename_is_offered(tmp_path: Path) -> None:
    pw.save_state(tmp_path / "state", {"x": 1})
    (tmp_path / "state").rename(tmp_path / ".state.0123abcd")
    with pytest.raises(FileNotFoundError, match=r"there is no such path. An interrupted save left '.state.0123abcd' beside it; restore_state opens that, too."):  # fmt: skip
        pw.restore_state(tmp_path / "state")
    assert pw.restore_state(tmp_path / ".state.0123abcd") == {"x": 1}


@pytest.mark.parametrize("at", [1, 2])
def test_an_interrupt_between_two_renames_leaves_the_older_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    cannot_exchange(monkeypatch)
    pw.save_state(tmp_path / "state", {"x": 1})
    rename, left = os.rename, [at]

    def interrupted(one: Any, other: Any) -> None:
        rename(one, other)
        left[0] -= Path(other).parent == tmp_path  # Orbax renames, too
        if not left[0]:
            left[0] = -1
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(state_folders.os, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pw.save_state(tmp_path / "state", {"x": 2}, overwrite=True)
    assert pw.restore_state(tmp_path / "state") == {"x": at}
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # interrupted between its opening and its block
@WAYS
def test_an_interrupt_at_any_instant_leaves_one_of_both_states_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    monkeypatch.setattr(state_files, "_save", write_text)
    if not exchanges:
        monkeypatch.setattr(state_folders, "exchange", lambda one, other: False)
    path, found = tmp_path / "state", 0

    def save(step: int) -> None:
        state_files.claim(path, overwrite=True)
        state_files.write(path, SavedLayout(0, (Leaf("", (), "int32"),)), {"step": np.int32(step)}, overwrite=True)

    save(0)
    for at in itertools.count(1, 5):
        good, interrupt = found, Interrupt(at)
        was_interrupted = interrupt.run(partial(save, at))
        found = read_small(path)
        assert found in (good, at), interrupt.where
        assert os.listdir(tmp_path) == ["state"], interrupt.where
        if not was_interrupted:
            break
    assert at > 100
    assert found == at


# ---- several processes


def test_a_state_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, load, seen = tmp_path / "state", state_files._load, []
    pw.save_state(path, {"step": 0, "w": np.zeros(3)})

    def replaced(folder: Path, wanted: Any) -> Any:
        seen.append(len(seen))
        if len(seen) < 3:  # before the arrays are read, then after
            first, then = (load, None) if len(seen) == 2 else (None, load)
            found = first(folder, wanted) if first else None
            pw.save_state(path, {"step": len(seen), "w": np.full(3, len(seen))}, overwrite=True)
            return then(folder, wanted) if then else found
        return load(folder, wanted)

    monkeypatch.setattr(state_files, "_load", replaced)
    found = pw.restore_state(path)
    assert (found["step"], found["w"].tolist(), len(seen)) == (2, [2, 2, 2], 3)


def test_a_state_that_is_always_replaced_is_an_error_and_one_that_is_damaged_is_none_of_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, check = tmp_path / "state", state_files.check_files
    pw.save_state(path, {"w": np.zeros(3)})

    def replaced(folder: Path, names: Any) -> None:
        pw.save_state(path, {"w": np.zeros(3)}, overwrite=True)
        check(folder, names)

    with monkeypatch.context() as patch:
        patch.setattr(state_files, "check_files", replaced)
        with pytest.raises(UsageError, match="it was replaced 10 times while it was read. Restore again, or save"):
            pw.restore_state(path)
    (path / "arrays" / "_METADATA").unlink()
    with pytest.raises(UsageError, match="its file arrays/_METADATA is missing"):
        pw.restore_state(path)


# ---- what cannot be written


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_is_not_replaced(tmp_path: Path, overwrite: bool) -> None:
    pw.save_state(tmp_path / "state", {"x": 1})
    (tmp_path / "link").symlink_to("state")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(UsageError, match=r"save_state\('.*link'.*\): the path is a link to 'state', and a link is not replaced. Pass the folder it leads to, or remove the link."):  # fmt: skip
        pw.save_state(tmp_path / "link", {"x": 2}, overwrite=overwrite)
    with pytest.raises(UsageError, match="the path is a link to 'nowhere'"):
        pw.save_state(tmp_path / "dangling", {"x": 2}, overwrite=overwrite)
    assert pw.restore_state(tmp_path / "link") == {"x": 1}
    assert sorted(os.listdir(tmp_path)) == ["dangling", "link", "state"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), ValueError("RESOURCE_EXHAUSTED: Failed to write: No space left on device [os_error_code='28']")])  # fmt: skip
def test_a_full_disk_leaves_the_older_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    pw.save_state(tmp_path / "state", {"x": np.arange(3)})

    def full(path: Path, arrays: Any) -> None:
        path.mkdir()
        raise error

    monkeypatch.setattr(state_files, "_save", full)
    with pytest.raises(OSError, match=r"save_state\('.*state'\): no space is left on the disk. The state has 8 KB before compression, which must fit beside the state saved there before, which is as it was; .*B are free. Remove something") as caught:  # fmt: skip
        pw.save_state(tmp_path / "state", {"x": np.arange(1000)}, overwrite=True)
    assert caught.value.errno == errno.ENOSPC
    assert pw.restore_state(tmp_path / "state")["x"].tolist() == [0, 1, 2]
    assert os.listdir(tmp_path) == ["state"]


def test_an_error_of_orbax_is_not_logged_by_each_of_its_threads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="exceeds"):
        state_files._save(tmp_path / "arrays", {"x" * 70_000: np.zeros(3)})
    assert not [record for record in caplog.records if "raised an exception" in record.getMessage()]


def test_names_that_no_folder_can_have_are_refused_in_few_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no folder can have that name: a part of it has 100000 bytes, and the most are 241") as caught:  # fmt: skip
        pw.save_state(tmp_path / ("x" * 100_000), {"x": 1})
    assert len(str(caught.value)) < 600
    with pytest.raises(UsageError, match="no folder can have that name: it has a NUL"):
        pw.save_state(tmp_path / "a\0b", {"x": 1})
    for name in ("x" * 100_000, "a\0b"):
        with pytest.raises(FileNotFoundError, match="there is no such path") as missing:
            pw.restore_state(tmp_path / name)
        assert len(str(missing.value)) < 600
    pw.save_state(tmp_path / ("x" * 241), {"x": 1})
    pw.save_state(tmp_path / ("x" * 241), {"x": 2}, overwrite=True)
