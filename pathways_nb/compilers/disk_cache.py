"""What compilers said, kept on disk by content: a second kernel, or a second day, need not compile again.

What was estimated from it of a long simulated node is kept here as well, as a program of its own (``kept_estimates``).
The key is a digest of all that goes in: the lowered program, the topology, the options and the compiler's version. An
entry is one compressed JSON file below ``$XDG_CACHE_HOME`` (else ``~/.cache``). The entries used longest ago are
removed when all together are larger than ``MOST_BYTES``. A cache that cannot be written is left alone with one warning.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
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


@dataclass(frozen=True)
class CompilerCache:
    """The cache of compiled programs.

    Args:
        folder: where its files are.
    """

    folder: Path

    @property
    def entries(self) -> int:
        """Number of programs, estimates of long simulated nodes among them."""
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
        for path in self.folder.glob("*.json.gz"):
            # Another process may remove an entry between the listing and the question.
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                found.append((path, status.st_size, status.st_mtime))
        return found

    def __repr__(self) -> str:
        return f"<compiler cache {self.folder}: {counted(self.entries, 'program')}, {self.size_bytes / 2**20:.1f} MiB>"


def compiler_cache() -> CompilerCache:
    """Return the cache of compiled programs on disk: where it is, how large, and ``clear()``."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return CompilerCache(Path(home) / "pathways_nb" / "compiled")


def key_of(request: Mapping[str, Any], program: bytes) -> str:
    """Return the key of a program that is compiled as a request says."""
    text = json.dumps([_FORM, request], sort_keys=True)
    return hashlib.sha256(text.encode() + program).hexdigest()


def read(key: str) -> dict[str, Any] | None:
    """Return what was written with a key; None if nothing was, or what is there is damaged."""
    path = compiler_cache().folder / f"{key}.json.gz"
    try:
        found = json.loads(gzip.decompress(path.read_bytes()))
        os.utime(path)  # the time of last use decides what is removed first
    except (OSError, EOFError, ValueError, zlib.error):
        return None
    return found if isinstance(found, dict) else None


def write(key: str, fields: Mapping[str, Any]) -> None:
    """Write an entry, whole or not at all, and remove old ones if there are too many."""
    cache = compiler_cache()
    making = cache.folder / f"{key}.{os.getpid()}"
    try:
        cache.folder.mkdir(parents=True, exist_ok=True)
        making.write_bytes(gzip.compress(json.dumps(dict(fields)).encode(), compresslevel=5))
        making.replace(cache.folder / f"{key}.json.gz")
        cache.trim()
    except OSError as error:
        with contextlib.suppress(OSError):
            making.unlink(missing_ok=True)
        warnings.warn(
            f"the compiled program could not be kept in {cache.folder} ({error.strerror or error}), so it will be "
            f"compiled again; free some space, or set XDG_CACHE_HOME to another folder.",
            stacklevel=2,
        )
