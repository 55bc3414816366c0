"""JAX's persistent compilation cache for nodes, in this project's folder: a second kernel compiles nothing anew.

JAX knows what an executable depends on: its key has the program, the compiler with its options, and the devices. Where
an entry lies, and what happens if it is damaged or the disk is full, is decided here and in ``disk_cache``; JAX's own
files are written in place, and a damaged one stays for ever. A folder that the user gave to JAX
(``jax_compilation_cache_dir``) is left to JAX, and where the user has disabled the cache nothing is kept.

JAX has one cache in a process, for jitted functions of the user's as well. So this one is there while a node is
compiled, and answers only the threads that compile nodes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax

from pathways_nb.compilers import disk_cache
from pathways_nb.util.fallbacks import fall_back


class _Compilation:
    """A node that a thread compiles.

    Args:
        same: equal for nodes that differ in their devices alone; ``None`` if nothing is known of that.
    """

    def __init__(self, same: Hashable):
        self.same = same
        self.found = False
        """Whether the cache had an entry."""
        self.refused = False
        """Whether JAX could do nothing with that entry."""
        self.error: OSError | None = None
        """Why the executable could not be kept."""


class _Compiler(threading.local):
    node: _Compilation | None = None


class _NodeCache:
    """What JAX asks for an executable, in the form of its own caches (``get`` and ``put``)."""

    def __init__(self) -> None:
        self.thread = _Compiler()
        self._keys: dict[Hashable, str] = {}
        """The key of an entry for each node, whatever its devices."""

    @property
    def _path(self) -> str:
        """The folder, which JAX writes to its log."""
        return str(disk_cache.compiler_cache().folder)

    def get(self, key: str) -> bytes | None:
        """Return an executable's bytes: those of the key, or of the same node for other devices of this process."""
        node = self.thread.node
        if node is None or node.refused:
            return None
        found = disk_cache.read_executable(_name(key))
        if found is None and (twin := self._keys.get(node.same)) is not None:
            found = disk_cache.read_executable(_name(twin))
            if found is not None:
                self.put(key, found)  # a later kernel may need it for these devices first
        if found is not None:
            node.found = True
            self._note(node.same, key)
        return found

    def put(self, key: str, value: bytes) -> None:
        """Keep an executable's bytes; an error is noted and not raised, since JAX would warn of each."""
        node = self.thread.node
        if node is None:
            return
        try:
            disk_cache.write_executable(_name(key), value)
            self._note(node.same, key)
        except OSError as error:
            node.error = error

    def _note(self, same: Hashable, key: str) -> None:
        if same is not None:
            self._keys[same] = key


class _PrivateOfJax(NamedTuple):
    """What is needed of JAX and not public.

    Args:
        module: whose ``_cache`` is the process's cache; ``None`` until JAX has made one.
        seconds: the setting of the shortest compilation that is kept, as a context manager.
    """

    module: Any
    seconds: Any


_cache = _NodeCache()
_lock = threading.Lock()
_turns: dict[Hashable, threading.Lock] = {}
_compiling = 0
"""Threads that compile a node with the cache."""


@functools.cache
def _jax() -> _PrivateOfJax | None:
    try:
        from jax._src import compilation_cache, config

        found = _PrivateOfJax(compilation_cache, config.persistent_cache_min_compile_time_secs)
        compilation_cache._cache  # noqa: B018  (it must be there)
        return found
    except (ImportError, AttributeError) as error:
        fall_back("Compiled nodes cannot be kept with this version of JAX", error, "Each kernel compiles them anew.")
        return None


def is_used() -> bool:
    """Return whether nodes are kept here: the user has neither a folder for JAX's cache nor disabled it."""
    asked: Any = jax.config
    return (
        asked.jax_compilation_cache_dir is None
        and asked.jax_enable_compilation_cache
        and asked.jax_compilation_cache_max_size != 0
        and _jax() is not None
    )


def turn(same: Hashable) -> AbstractContextManager[Any]:
    """Return a lock for nodes that differ in their devices alone: who comes second loads what the first compiled."""
    return _turns.setdefault(same, threading.Lock()) if same is not None and is_used() else contextlib.nullcontext()


def compiled(lowered: Any, options: Mapping[str, Any], same: Hashable = None) -> jax.stages.Compiled:
    """Compile a lowered node, or load it if it was compiled before.

    Args:
        lowered: the node, as ``jax.jit(…).lower(…)`` returns it.
        options: of the compiler.
        same: equal for nodes that differ in their devices alone, where an executable may be loaded for other devices.

    Returns:
        What ``lowered.compile(options)`` returns; a cache that is damaged or cannot be written changes nothing.
    """
    if not is_used():
        return lowered.compile(dict(options) or None)
    node = _cache.thread.node = _Compilation(same)
    try:
        with _in_place():
            return _compiled(lowered, options, node)
    finally:
        _cache.thread.node = None
        if node.error is not None:
            with contextlib.suppress(Warning):  # also where the user has made warnings errors
                fall_back(
                    f"Compiled nodes cannot be kept in {disk_cache.compiler_cache().folder}",
                    node.error,
                    "Each kernel compiles them anew. Free some space, or set XDG_CACHE_HOME to another folder.",
                )


def _compiled(lowered: Any, options: Mapping[str, Any], node: _Compilation) -> jax.stages.Compiled:
    try:
        return lowered.compile(dict(options) or None)
    except Exception:  # of whatever class XLA raises for bytes that it does not understand
        if not node.found:
            raise
        node.refused = True
        return lowered.compile(dict(options) or None)


@contextlib.contextmanager
def _in_place() -> Iterator[None]:
    """Have JAX ask this cache in the block, also for what compiles in less than a second."""
    global _compiling
    found = _jax()
    assert found is not None
    with _lock:
        _compiling += 1
        if found.module._cache is None:
            found.module._cache = _cache
    try:
        with found.seconds(0.0):
            yield
    finally:
        with _lock:
            _compiling -= 1
            if not _compiling and found.module._cache is _cache:
                found.module._cache = None  # JAX makes its own, should the user give it a folder later


def _name(key: str) -> str:
    """Return the name of an entry; JAX's key begins with a module's name, which may be too long for a file."""
    return hashlib.sha256(key.encode()).hexdigest()
