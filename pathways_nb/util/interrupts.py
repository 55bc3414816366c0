"""Ctrl-C that waits, for milliseconds, while Python code enters or leaves a ``with`` block.

Python raises an interrupt where ``__exit__`` begins as readily as anywhere else. What the block has changed then stays
changed: JAX goes on tracing, the configuration of a finished block holds, a recording stays open. An interrupt inside
``__del__`` is lost. So ``guard`` has the handler of Ctrl-C look at the interrupted frames: if one of them does such a
thing, the signal is sent again a little later. Code of the user, and our own waits, are interrupted at once.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import contextlib
import os
import signal
import sysconfig
import threading
import time
import weakref
from collections.abc import Callable
from functools import cache
from types import FrameType

from pathways_nb.util import waiting

_NAMES = frozenset(
    """__enter__ __exit__ __del__ __hash__ __eq__ set_trace set_axis_env _xla_gc_callback _notice
    _is_ref paths is_constant_dim convert_to_index eval_one_dim ctx_factory _equality_errors _prefix_error
    get_out_shardings_from_executable _get_layouts_from_executable _get_out_sharding_from_orig_sharding""".split()
)
"""Functions that are not divided: they change what a block has to restore, or their callers are written in C.

``_xla_gc_callback`` and ``_notice`` are what JAX and ``runtime.gc_pauses`` have called at each garbage collection:
Python swallows what is raised in them. JAX's functions from ``_is_ref`` on swallow it themselves (``except:``)."""
_FILES = frozenset({contextlib.__file__, weakref.__file__})
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SOURCES = tuple(path + os.sep for path in (_PACKAGE, *map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))))
"""Folders of what is not the user's code."""
_NUMBER = int(signal.SIGINT)
_PAUSE, _MOST = 1e-3, 200
"""Seconds until the signal is sent again, and how often at most: then it is raised wherever the thread is."""


class _Postponed:
    tries = 0
    """How often the interrupt under way was put off."""


_postponed = _Postponed()


rendered: Callable[[], list[str]] | None = None
"""Returns the lines of the traceback of the interrupt that is being handled, for IPython, which asks the error."""


def guard() -> None:
    """Put off interrupts while blocks are entered and left, if Python's own handler is in place."""
    is_default = _signal.getsignal(_NUMBER) is signal.default_int_handler  # ``signal.getsignal`` takes 3 µs
    if is_default and threading.current_thread() is threading.main_thread():  # no other thread may set a handler
        signal.signal(signal.SIGINT, _handle)


def _handle(number: int, frame: FrameType | None) -> None:
    """Raise ``KeyboardInterrupt``, now or soon."""
    __tracebackhide__ = True
    # After so many tries it is raised anywhere: a block that does not end must not make Ctrl-C useless.
    if _postponed.tries < _MOST and is_undivided(frame):
        _postponed.tries += 1
        # By another thread: the frame goes on only when this handler returns. Not by ``threading.Thread``, which is
        # Python code: a second signal could interrupt its start.
        _thread.start_new_thread(_again, (number,))
        return
    _postponed.tries = 0
    error = KeyboardInterrupt()
    if rendered is not None:
        error._render_traceback_ = rendered  # type: ignore[attr-defined]
    raise error


def _again(number: int) -> None:
    time.sleep(_PAUSE)
    # To the main thread itself, so that a system call in which it waits ends, too.
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident, number)  # type: ignore[arg-type]
    else:
        signal.raise_signal(number)


def is_undivided(frame: FrameType | None) -> bool:
    """Return whether an interrupt of this frame would leave something half done."""
    while frame is not None:
        code = frame.f_code
        # From the innermost frame outwards: the user's code, which may have been called from here, is interrupted.
        if code in waiting.waits or _is_users(code.co_filename):
            return False
        if code.co_name in _NAMES or code.co_filename in _FILES:
            return True
        frame = frame.f_back
    return False


@cache
def _is_users(filename: str) -> bool:
    return not filename.startswith((*_SOURCES, "<frozen")) and filename not in ("<string>", "<attrs>")
