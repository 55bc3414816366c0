"""JAX's contexts: settings that hold for the lines inside them in one thread, such as ``jax.enable_x64(True)``.

JAX traces, lowers and compiles under them, and keeps what it made for equal ones only. So a call is traced and lowered
by the thread and at the line that makes it, and its signature holds the contexts there (``current``). What happens
later for a call, in this thread (``entered``) or in one of this package's (``adopt``), happens under the same contexts.

The tuple that is part of the keys of JAX's own caches is not public. Where it is missing, the values of the public
contexts stand for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import jax

from pathways_nb.util.fallbacks import fall_back

_PUBLIC = (
    *("enable_x64", "default_matmul_precision", "threefry_partitionable", "default_prng_impl", "enable_custom_prng"),
    *("numpy_dtype_promotion", "numpy_rank_promotion", "softmax_custom_jvp", "debug_key_reuse", "default_device"),
    *("debug_nans", "debug_infs"),
)
"""The public contexts on which values depend."""
_FURTHER = ("jax_default_prng_impl", "jax_enable_custom_prng", "jax_optimization_level", "jax_memory_fitting_level",
           "jax_debug_nans", "jax_debug_infs")  # fmt: skip
"""Settings that JAX reads while it traces, compiles or runs, and that are not in its tuple."""
_WITHOUT_MEANING = frozenset({"jax_disable_jit"})
"""Settings that are off wherever a call is carried out; see ``of_places``."""
_PLAIN = (bool, int, float, str, type(None))
"""Types of values that mean the same in another process; enumerations are ``int`` or ``str``."""

Manager = Callable[[Any], AbstractContextManager[Any]]


class _Settings(NamedTuple):
    """How contexts are read and entered.

    Args:
        names: of the settings, in order; contexts that a user makes follow after them, without a name.
        read: returns the values in this thread, in this order.
        managers: by name, the context manager of each setting that can be entered with a value.
    """

    names: tuple[str, ...]
    read: Callable[[], tuple[Any, ...]]
    managers: Mapping[str, Manager]


def _private() -> _Settings:
    """Return all settings in the keys of JAX's own caches, and those in ``_FURTHER``."""
    from jax._src import config

    states, trace_context = config.config_states, config.trace_context
    names = (*_FURTHER, *config.trace_context_names())
    prng, custom, optimization, memory, nans, infs = (states[name] for name in _FURTHER)

    def read() -> tuple[Any, ...]:
        # Attributes by name and one tuple: it is read at every call, and costs about half a microsecond.
        return (prng.value, custom.value, optimization.value, memory.value, nans.value, infs.value, *trace_context())

    return _Settings(names, read, {name: states[name] for name in names if name in states})


def _public() -> _Settings:
    """Return the public settings."""
    known = [name for name in _PUBLIC if hasattr(jax, name) and hasattr(jax.config, f"jax_{name}")]
    names = tuple(f"jax_{name}" for name in known)
    managers = {f"jax_{name}": getattr(jax, name) for name in known}
    return _Settings(names, lambda: tuple(getattr(jax.config, name) for name in names), managers)


def _settings() -> _Settings:
    try:
        found = _private()
        values = found.read()
        hash(values)
        # Then names and values would not belong together.
        if len(values) < len(found.names):
            raise TypeError(f"{len(values)} values of {len(found.names)} settings")
        return found
    except (ImportError, AttributeError, KeyError, TypeError, ValueError, NotImplementedError) as error:
        fall_back(
            "The contexts of this version of JAX cannot be read",
            error,
            f"Calls under different contexts are told apart by {', '.join(f'jax.{name}' for name in _PUBLIC)} alone.",
        )
        return _public()


_names, _read, _managers = _settings()


class Contexts:
    """The contexts of one line; there is one object for equal ones, so that keys compare and hash it by identity.

    Pickled, it takes along the settings that mean the same in another process.
    """

    __slots__ = ("__weakref__", "values")

    def __init__(self, values: tuple[Any, ...]):
        self.values = values

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that mean the same in another process, by name."""
        return {
            name: value
            for name, value in zip(_names, self.values, strict=False)
            if name in _managers and isinstance(value, _PLAIN)
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return _of, (self.settings,)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name.removeprefix('jax_')}={value!r}" for name, value in self.settings.items())
        return f"<contexts {shown}>"


_known: WeakValueDictionary[tuple[Any, ...], Contexts] = WeakValueDictionary()
_changing = threading.Lock()
_latest = Contexts(())


def current() -> Contexts:
    """Return the contexts of this thread."""
    global _latest
    values, latest = _read(), _latest
    if values == latest.values:  # cheaper than to hash them
        return latest
    _latest = latest = _one(values)
    return latest


def _one(values: tuple[Any, ...]) -> Contexts:
    """Return the only object of these values."""
    with _changing:
        found = _known.get(values)
        if found is None:
            found = _known[values] = Contexts(values)
    return found


def _of(settings: Mapping[str, Any]) -> Contexts:
    """Return contexts of another process: its settings, and for the rest those of this thread."""
    here = _read()
    named = tuple(settings.get(name, value) for name, value in zip(_names, here, strict=False))
    return _one((*named, *here[len(named) :]))


def entered(contexts: Contexts, here: Contexts | None = None) -> AbstractContextManager[None]:
    """Return a context manager under which this thread has other contexts, as far as they are settings of JAX.

    Args:
        contexts: those to have.
        here: those of this thread, if they are known.
    """
    return _NOTHING if contexts is (here or current()) else _entered(contexts)


_NOTHING = contextlib.nullcontext()


@contextlib.contextmanager
def _entered(contexts: Contexts) -> Iterator[None]:
    before = _read()
    try:
        with contextlib.ExitStack() as stack:
            for manager in _changes(before, contexts.values):
                stack.enter_context(manager)
            yield
    finally:
        for manager in _changes(_read(), before):  # of which an interrupt kept the stack from hearing
            manager.__enter__()


@contextlib.contextmanager
def of_places() -> Iterator[None]:
    """Trace or lower computations in this block: the mesh of each is that of its place, and all of them are compiled.

    The mesh of ``jax.set_mesh``, and ``jax.disable_jit``, mean nothing to them.

    Yields:
        Nothing.
    """
    without = _NOTHING if jax.sharding.get_abstract_mesh().empty else jax.set_mesh(None)
    with without, jax.disable_jit(False):
        yield


class _Thread(threading.local):
    contexts: Contexts | None = None


_thread = _Thread()


def adopt(contexts: Contexts) -> None:
    """Give a thread of this package the contexts of what it does next; they stay until it adopts others.

    The first ones set every setting, so that none follows a later ``jax.config.update``.
    """
    before = _thread.contexts
    if before is contexts:
        return
    _thread.contexts = None  # should a setting be refused half-way, the next ones set all again
    # Entered and never left: the setting stays for this thread until the next call changes it.
    for manager in _changes(() if before is None else before.values, contexts.values):
        manager.__enter__()
    _thread.contexts = contexts


def _changes(before: tuple[Any, ...], after: tuple[Any, ...]) -> Iterator[AbstractContextManager[Any]]:
    """Yield what must be entered to get from some values to others; from none, all."""
    for at, (name, value) in enumerate(zip(_names, after, strict=False)):
        if name in _managers and (at >= len(before) or (before[at] is not value and before[at] != value)):
            yield _managers[name](False if name in _WITHOUT_MEANING else value)
