"""What compilers made, kept on disk by content: a second kernel, or a second day, need not compile again.

Three things are kept, each under a digest of all that goes in. What a compiler of other chips said of a program, and
what was estimated from it of a long simulated node (``kept_estimates``), is one compressed JSON file each. An
executable of a node that ran (``kept_executables``) is the bytes that JAX makes of it, behind their checksum. All lie
below ``$XDG_CACHE_HOME`` (else ``~/.cache``). The entries used longest ago are removed when all together are larger
than ``MOST_BYTES``. A damaged entry counts as none, and is written again.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import threading
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathways_nb.util.words import counted

MOST_BYTES = 2 * 2**30
"""Bytes that all entries together may have on disk."""
_FORM = 1
"""Number of the form of entries; another number makes other keys."""
_TEXT, _EXECUTABLE = ".json.gz", ".executable"
"""Ends of the names of entries."""
_CHECKSUM = hashlib.sha256().digest_size
_UNTRIMMED = 32 * 2**20
"""Bytes that a process writes before it looks again whether old entries must go."""
_written = _UNTRIMMED


@dataclass(frozen=True)
class CompilerCache:
    """The cache of compiled programs.

    Args:
        folder: where its files are.
    """

    folder: Path

    @property
    def entries(self) -> int:
        """Number of compiled nodes, of what compilers of other chips said, and of estimates of long nodes, together."""
        return len(self._files())

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return sum(size for _, size, _ in self._files())

    def clear(self) -> int:
        """Remove all entries, and return how many there were."""
        found = self._files()
        for path, _, _ in found:
            path.unlink(missing_ok=True)
        return len(found)

    def trim(self, most: int = MOST_BYTES) -> None:
        """Remove the entries that were used longest ago, until the rest has at most so many bytes."""
        found = sorted(self._files(), key=lambda file: file[2], reverse=True)
        kept = 0
        for path, size, _ in found:
            kept += size
            if kept > most:
                path.unlink(missing_ok=True)

    def _files(self) -> list[tuple[Path, int, float]]:
        """Return path, bytes and time of last use of each entry."""
        found = []
        for path in self.folder.glob("*"):
            if not path.name.endswith((_TEXT, _EXECUTABLE)):
                continue
            # Another process may remove an entry between the listing and the question.
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                found.append((path, status.st_size, status.st_mtime))
        return found

    def __repr__(self) -> str:
        return f"<compiler cache {self.folder}: {counted(self.entries, 'program')}, {self.size_bytes / 2**20:.1f} MiB>"


def compiler_cache() -> CompilerCache:
    """Return the cache of compiled programs on disk: where it is, how large, and ``clear()``.

    Executables of nodes are kept there unless JAX has a folder of its own (``jax_compilation_cache_dir``), or its cache
    is disabled (``jax_enable_compilation_cache``).
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return CompilerCache(Path(home) / "pathways_nb" / "compiled")


def key_of(request: Mapping[str, Any], program: bytes) -> str:
    """Return the key of a program that is compiled as a request says."""
    text = json.dumps([_FORM, request], sort_keys=True)
    return hashlib.sha256(text.encode() + program).hexdigest()


def read(key: str) -> dict[str, Any] | None:
    """Return what was written with a key; None if nothing was, or what is there is damaged."""
    try:
        found = json.loads(gzip.decompress(_read(f"{key}{_TEXT}")))
    except (OSError, EOFError, ValueError, zlib.error):
        return None
    return found if isinstance(found, dict) else None


def write(key: str, fields: Mapping[str, Any]) -> None:
    """Write an entry, whole or not at all, and remove old ones if there are too many."""
    try:
        _write(f"{key}{_TEXT}", gzip.compress(json.dumps(dict(fields)).encode(), compresslevel=5))
    except OSError as error:
        warnings.warn(
            f"the compiled program could not be kept in {compiler_cache().folder} ({error.strerror or error}), so it "
            f"will be compiled again; free some space, or set XDG_CACHE_HOME to another folder.",
            stacklevel=2,
        )


def read_executable(key: str) -> bytes | None:
    """Return the bytes of an executable; None if there are none, or they are damaged."""
    try:
        found = _read(f"{key}{_EXECUTABLE}")
    except OSError:
        return None
    checksum, content = found[:_CHECKSUM], found[_CHECKSUM:]
    return content if hashlib.sha256(content).digest() == checksum else None


def write_executable(key: str, content: bytes) -> None:
    """Write the bytes of an executable, whole or not at all, and remove old entries if there are too many.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    _write(f"{key}{_EXECUTABLE}", hashlib.sha256(content).digest() + content)


def _read(name: str) -> bytes:
    path = compiler_cache().folder / name
    content = path.read_bytes()
    with contextlib.suppress(OSError):  # of another user, or on a disk that is read only
        os.utime(path)  # the time of last use decides what is removed first
    return content


def _write(name: str, content: bytes) -> None:
    global _written
    cache = compiler_cache()
    # Threads of this process may write the same entry at once.
    making = cache.folder / f"{name}.{os.getpid()}-{threading.get_ident()}"
    try:
        cache.folder.mkdir(parents=True, exist_ok=True)
        making.write_bytes(content)
        making.replace(cache.folder / name)
        _written += len(content)
        if _written >= _UNTRIMMED:  # to look at each write would cost more than small entries save
            _written = 0
            cache.trim()
    except OSError:
        with contextlib.suppress(OSError):
            making.unlink(missing_ok=True)
        raise
