"""Kill processes that save a state: the last good state opens by its name, and the next save clears away what was left.

    python -m tests.jax.session.killed_saves --count 200 --seed 0

Each save runs in a child of this process. Every other kill comes at a random time, by the system; the rest come at a
chosen call between the first sync and the removal of the older state, so also within the exchange. Half of all saves
are on a system that cannot exchange two names.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import pathways_nb as pw
from pathways_nb.session.checkpoints import state_files, state_folders
from pathways_nb.session.checkpoints.saved_layout import Leaf, SavedLayout

CALLS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.scandir", "os.listdir"}
"""System calls that Python tells of before it makes them; syncs and the exchange are wrapped."""


class Killer:
    """Ends this process, as a kill would, before its n-th system call.

    Args:
        at: the number of the call, from 1; 0 for none.
        from_sync: whether to count only what follows the first sync.
    """

    def __init__(self, at: int, from_sync: bool = False):
        self.left, self.counts = at, not from_sync

    def arm(self) -> None:
        """Count from now on."""
        for module, name in ((os, "fsync"), (state_folders, "exchange")):
            setattr(module, name, self._counted(getattr(module, name)))
        sync = state_folders.sync

        def first(folder: Path) -> None:
            self.counts = True
            sync(folder)

        state_folders.sync = first
        sys.addaudithook(lambda event, _: self.count() if event in CALLS else None)

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            self.count()
            return call(*args)

        return counted

    def count(self) -> None:
        if self.counts:
            self.left -= 1
            if not self.left:
                os._exit(9)


def without_exchange() -> None:
    """Let this process be on a system that cannot exchange two names."""
    state_folders.exchange = lambda one, other: False


def in_child(work: Callable[[], int]) -> int:
    """Return the exit status of a child that does ``work``; of one that was killed by a signal it is negative."""
    with warnings.catch_warnings():  # nothing of JAX runs here that a child would lack
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        try:
            os._exit(work())
        except BaseException:
            traceback.print_exc()
            os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# ---- every call, with a writer in place of Orbax


def write_small(path: Path, step: int, exchanges: bool, kill_at: int = 0) -> int:
    """Save a state whose only array is ``step``, written as text."""
    state_files._save = write_text
    if not exchanges:
        without_exchange()
    Killer(kill_at).arm()
    state_files.claim(path, overwrite=True)
    state_files.write(path, SavedLayout(0, (Leaf("", (), "int32"),)), {"step": np.int32(step)}, overwrite=True)
    return 0


def write_text(path: Path, arrays: Mapping[str, Any]) -> None:
    path.mkdir()
    (path / "step").write_text(str(arrays["step"]))


def read_small(path: Path) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = state_files.find(path)
    state_files.read_layout(found)
    state_files.check_files(found, [])
    return int((found / "arrays" / "step").read_text())


def kill_at_every_call(folder: Path, exchanges: bool) -> Counter[str]:
    """Kill saves at their first call, at their second one, and so on, until one is through.

    Returns:
        How often the older and the newer state was there, and where.
    """
    path, outcomes, good, status = folder / "state", Counter[str](), 0, 9
    assert in_child(partial(write_small, path, 0, exchanges)) == 0
    for step in itertools.count(1):
        status = in_child(partial(write_small, path, step, exchanges, kill_at=step))
        found = read_small(path)
        assert found in (good, step), f"call {step}: the state of step {found}; it was {good}, and {step} was saved"
        if status == 0:
            break
        assert status == 9, f"call {step}: a save ended with {status}"
        outcomes[f"{'newer' if found == step else 'older'}{'' if path.exists() else ', hidden'}"] += 1
        good = found
    assert (found, os.listdir(folder)) == (step, ["state"]), "what earlier kills left is gone"
    return outcomes


# ---- saves with Orbax, also killed at random times


def tree(step: int) -> dict[str, Any]:
    return {"step": step, "w": np.full((200, 300), step, "f4"), "b": [np.full(50, step, "i4")] * 3}


def saved(path: Path, step: int, exchanges: bool = True, kill_at: int = 0, kill_after: float = 0.0) -> int:
    if not exchanges:
        without_exchange()
    if kill_at:
        Killer(kill_at, from_sync=True).arm()
    signal.setitimer(signal.ITIMER_REAL, kill_after)
    pw.save_state(path, tree(step), overwrite=True)
    return 0


def opened(path: Path, good: int, newer: int) -> int:
    """Return 10 if the older state is there, and 11 if it is the newer one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pw.restore_state(path)
    for status, step in ((10, good), (11, newer)):
        if found["step"] == step and all(np.all(leaf == step) for leaf in (found["w"], *found["b"])):
            return status
    return 3


def tried(count: int, seed: int, folder: Path) -> Counter[str]:
    """Kill ``count`` saves, every other one by a call, and open the state after each.

    Returns:
        How many there were of each kind, and what was found.
    """
    draw, outcomes, path, good, seconds = random.Random(seed), Counter[str](), folder / "state", 0, 1.0
    assert in_child(partial(saved, path, 0)) == 0
    for step in itertools.count(1):
        by_call = outcomes["killed at a call"] <= outcomes["killed at a time"]
        how = {"kill_at": draw.randrange(1, 60)} if by_call else {"kill_after": draw.uniform(0.001, seconds)}
        status = in_child(partial(saved, path, step, draw.random() < 0.5, **how))
        if not by_call:  # most times are to lie within a save, however fast the machine is
            seconds *= 0.9 if status == 0 else 1.03
        hidden = not path.exists()
        found = in_child(partial(opened, path, good, step))
        ends = {9: "killed at a call", -signal.SIGALRM: "killed at a time", 0: "not killed"}
        outcomes[ends.get(status, f"wrong: a save ended with {status}")] += 1
        finds = {10: "wrong: a save that was not killed" if status == 0 else "found the older", 11: "found the newer"}
        outcomes[finds.get(found, "wrong: lost")] += 1
        outcomes["killed between two renames"] += hidden
        outcomes["killed after the exchange"] += found == 11 and status != 0
        good = step if found == 11 else good
        if outcomes["killed at a call"] + outcomes["killed at a time"] == count or any(
            "wrong" in one for one in outcomes
        ):
            break
    assert in_child(partial(saved, path, step + 1)) == 0
    outcomes["hidden folders after the next save"] = len(os.listdir(folder)) - 1
    return outcomes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        calls = {}
        for name, exchanges in (("exchange", True), ("two renames", False)):
            (Path(scratch) / name).mkdir()
            calls[name] = kill_at_every_call(Path(scratch) / name, exchanges)
        (Path(scratch) / "orbax").mkdir()
        outcomes = tried(asked.count, asked.seed, Path(scratch) / "orbax")
    print(json.dumps({"every call": calls, "kills": outcomes}))
    raise SystemExit(any(outcomes[what] for what in outcomes if "wrong" in what or "hidden" in what))
