"""Damage saved states and restore them: each comes back with its values, or is refused.

    python -m tests.jax.session.damaged_states --count 2000 --seed 0

One file of a state is changed at a time: bits are flipped, a stretch becomes zeros, it is cut, lengthened, exchanged with
another one, or deleted.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import pathways_nb as pw


def states(place: pw.VirtualSlice) -> list[Any]:
    """Trees of several kinds: of a model and its optimizer in shards, of the host, of many small leaves, of one."""
    draw = np.random.default_rng(0)
    params = {"w": draw.normal(size=(64, 32)).astype("f4"), "b": np.ones(32, "f4")}
    state = optax.adam(1e-2).init(params)
    shards = pw.put(draw.normal(size=(32, 64)).astype("f4"), on=place, shardings=pw.P("x"))
    return [
        {"params": pw.put(params, on=place), "adam": state, "shards": shards, "step": 7},
        {"tokens": 3_000_000_000, "rate": 1e39, "text": draw.integers(0, 99, 5000), "key": jax.random.key(3)},
        [np.full(3, at, "i4") for at in range(20)],
        draw.normal(size=20_000),
    ]


def flipped(data: bytes, draw: random.Random) -> bytes:
    at, bit = draw.randrange(len(data)), 1 << draw.randrange(8)
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


def zeroed(data: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(data))
    stop = min(len(data), start + draw.choice([1, 16, 512, 4096]))
    return data[:start] + bytes(stop - start) + data[stop:]


def cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def lengthened(data: bytes, draw: random.Random) -> bytes:
    return data + draw.randbytes(draw.choice([1, 100]))


DAMAGES: list[Callable[[bytes, random.Random], bytes]] = [flipped, zeroed, cut, lengthened]


def damage(folder: Path, draw: random.Random) -> tuple[dict[Path, bytes], str]:
    """Damage a file of a state; return its former bytes, and those of a file it was exchanged with, and what was done."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    file, kind = draw.choice(files), draw.choice([*DAMAGES, "deleted", "exchanged"])
    before = {file: file.read_bytes()}
    if kind == "deleted":
        file.unlink()
    elif kind == "exchanged":
        other = draw.choice(files)
        before[other] = other.read_bytes()
        file.write_bytes(before[other])
        other.write_bytes(before[file])
    else:
        assert callable(kind)
        file.write_bytes(kind(before[file], draw))
    return before, f"{file.relative_to(folder)} {kind if isinstance(kind, str) else kind.__name__}"


def bits(tree: Any) -> list[tuple[Any, Any, bytes]]:
    """Type, shape and bytes of every leaf."""
    leaves = [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in jax.tree.leaves(pw.get(tree))]
    return [(np.asarray(leaf).dtype, np.shape(leaf), np.asarray(leaf).tobytes()) for leaf in leaves]


def is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def tried(count: int, seed: int, folder: Path, place: pw.VirtualSlice) -> tuple[Counter[str], list[str]]:
    """Damage and restore states.

    Returns:
        How many were refused and came back right, and what came of the others.
    """
    draw, outcomes, wrong = random.Random(seed), Counter[str](), []
    trees = states(place)
    for number, tree in enumerate(trees):
        pw.save_state(folder / str(number), tree)
    expected = [bits(tree) for tree in trees]
    for _ in range(count):
        number = draw.randrange(len(trees))
        path = folder / str(number)
        before, what = damage(path, draw)
        changed = any(not file.exists() or file.read_bytes() != data for file, data in before.items())
        try:
            found = bits(pw.restore_state(path, like=draw.choice([None, trees[number]])))
            outcome = "right" if found == expected[number] else "other values"
        except pw.UsageError as error:
            outcome = "refused" if changed else f"refused without damage: {error}"
        except Exception as error:  # any other error is one that does not say what happened
            outcome = f"{type(error).__name__}: {error}"
        outcomes[outcome] += 1
        if outcome not in ("right", "refused"):
            wrong.append(f"state {number}, {what}: {outcome}")
        for file, data in before.items():
            file.write_bytes(data)
    return outcomes, wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    pw.attach("cpu", islands=1, devices_per_island=4)
    with tempfile.TemporaryDirectory() as scratch:
        outcomes, wrong = tried(asked.count, asked.seed, Path(scratch), pw.virtual_slice(4))
    print(*wrong, json.dumps(outcomes), sep="\n")
    raise SystemExit(bool(wrong))
