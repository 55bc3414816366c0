"""Real text that is on every machine: the source of Python's own standard library, as bytes.

``stdlib_source`` reads it, ``batches`` cuts it into windows for a byte-level language model. Bytes are the
tokens (256 of them), so no tokenizer is needed and a sample can be read by eye.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


def stdlib_source(max_bytes: int = 2_000_000) -> np.ndarray:
    """Return the standard library's Python files one after another, in the order of their names.

    Tests, installed packages and files that the build of Python generated are left out, so that two machines
    with the same Python version read the same bytes.

    Args:
        max_bytes: most bytes to read.

    Returns:
        ``uint8[n]`` with ``n <= max_bytes``.

    Raises:
        ValueError: ``max_bytes`` is less than 1.
        FileNotFoundError: this Python keeps no source files on disk (zipped or embedded).
    """
    if max_bytes < 1:
        raise ValueError(f"stdlib_source(max_bytes={max_bytes}): ask for at least 1 byte.")
    # ``os`` lies in the library's own folder.
    folder = Path(os.__file__).parent
    text = bytearray()
    for path in _sources(folder):
        text += path.read_bytes()
        # Whole files, so that the text is cut once, at the end.
        if len(text) >= max_bytes:
            break
    if not text:
        raise FileNotFoundError(
            f"no Python source beside the os module ({folder}): this Python is zipped or embedded. "
            "Use an ordinary installation, or pass your own text: np.frombuffer(text.encode(), np.uint8)."
        )
    return np.frombuffer(bytes(text[:max_bytes]), np.uint8)


def _sources(folder: Path) -> list[Path]:
    """Return the Python files below a folder, sorted by path: the order of a file system differs between machines."""
    found = []
    for parent, subfolders, names in os.walk(folder):
        # In place: ``os.walk`` does not enter what is not in the list any more.
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED]
        found += [Path(parent, name) for name in names if name.endswith(".py") and not name.startswith("_sysconfig")]
    return sorted(found, key=Path.as_posix)


def batches(data: np.ndarray, *, batch: int, length: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Return an endless iterator of windows at random places of ``data``.

    Args:
        data: tokens, ``integer[n]`` with ``n > length``.
        batch: windows per step.
        length: tokens per window.
        seed: the same seed gives the same windows.

    Returns:
        An endless iterator of ``(inputs, targets)``, both ``int32[batch, length]``;
        ``targets`` are the tokens that follow each of ``inputs``.

    Raises:
        ValueError: a size is less than 1, or ``data`` is not a row of more than ``length`` integers.
    """
    if batch < 1 or length < 1:
        raise ValueError(f"batches(batch={batch}, length={length}): both must be at least 1.")
    # A list of tokens is accepted, too.
    data = np.asarray(data)
    if data.ndim != 1 or not np.issubdtype(data.dtype, np.integer):
        raise ValueError(f"batches(data): a row of integers is needed, got {data.dtype} of shape {data.shape}.")
    if len(data) <= length:
        raise ValueError(
            f"batches(length={length}): a window and the token after it need {length + 1} tokens, "
            f"data has {len(data)}. Use a shorter length or more data."
        )
    return _windows(data, batch, length, seed)


def _windows(data: np.ndarray, batch: int, length: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield inputs and targets for ever; apart from ``batches`` so that its errors are raised at the call."""
    rng = np.random.default_rng(seed)
    offsets = np.arange(length + 1)
    while True:
        # (batch, 1) + (length + 1,): each window has one token more, the target of its last input.
        starts = rng.integers(0, len(data) - length, size=(batch, 1))
        windows = data[starts + offsets].astype(np.int32)
        yield windows[:, :-1], windows[:, 1:]
