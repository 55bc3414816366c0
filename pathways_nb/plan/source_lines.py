"""Where the user wrote something: ``Cell In[3], line 4`` in a notebook, ``train.py:12`` elsewhere.

Errors, figures and events name the user's line, not this package's. Frames of this package and of libraries are
recognised by their files and passed over; cells are recognised through IPython's table of compiled cells. That table is
private and may be missing; then the file name is shown.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from pathways_nb.errors import PathwaysError
from pathways_nb.util.displaying import ipython_shell

P = ParamSpec("P")
R = TypeVar("R")

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TOOLS = os.path.join(_PACKAGE, "util", "")
_IPYTHON = f"{os.sep}site-packages{os.sep}IPython{os.sep}"
# Those of other machines as well, since a compiled text may come from there: Debian has ``dist-packages``.
_LIBRARIES = (
    *(_PACKAGE, "/site-packages/", "/dist-packages/", f"{os.sep}site-packages{os.sep}", "/lib/python3."),
    *(os.path.dirname(os.__file__) + os.sep, "<frozen", "<string>"),
)
_KERNEL = f"{os.sep}ipykernel_"
"""In the names of cells' files: the folder of a kernel, with the number of its process."""


def describe(filename: str, line: int) -> str:
    """Return a position in a file in the words of a notebook or a script."""
    cells = getattr(getattr(ipython_shell(), "compile", None), "_filename_map", None) or {}
    name = os.path.basename(filename)
    number = cells.get(filename)
    if number is None and _KERNEL in filename:
        # What JAX has cached may name an earlier kernel's folder; the file of a cell is called by its text.
        number = next((number for known, number in cells.items() if os.path.basename(known) == name), None)
    return f"{name}:{line}" if number is None else f"Cell In[{number}], line {line}"


@cache
def is_users(filename: str) -> bool:
    """Return whether a file is the user's own: neither part of this package nor of a library."""
    return not any(part in filename for part in _LIBRARIES)


def user_line(frame: FrameType | None = None) -> str:
    """Return the innermost line of the user's own code among the callers, or ``""``.

    Args:
        frame: where to begin; ``None`` means the caller.
    """
    frame = sys._getframe(1) if frame is None else frame
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return describe(frame.f_code.co_filename, line_of(frame))
        frame = frame.f_back
    return ""


def line_of(place: FrameType | TracebackType) -> int:
    """Return the line at which a frame is, or was in an entry of a traceback.

    The first of its function where it is at an instruction without a line, which an interrupt may meet.
    """
    frame, line = (place.tb_frame, place.tb_lineno) if isinstance(place, TracebackType) else (place, place.f_lineno)
    return frame.f_code.co_firstlineno if line is None else line


def users_variables() -> dict[str, object]:
    """Return the variables of the innermost frame of the user's own code among the callers."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return {**frame.f_globals, **frame.f_locals}  # a local variable hides a global of its name
        frame = frame.f_back  # type: ignore[assignment]
    return {}


def users_traceback(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback with only the entries of the user's own code; ``None`` if there are none."""
    entries = []
    while traceback is not None:
        if is_users(traceback.tb_frame.f_code.co_filename):
            entries.append(traceback)
        traceback = traceback.tb_next
    return _of_entries(entries)


def shown_traceback(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback as a notebook shows it: where this package is among its entries, the user's lines alone.

    Where it is not, as in a library that the user's code calls, all entries but IPython's own and those of the tools
    for waiting and interrupts.
    """
    entries = list[TracebackType]()
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if not filename.startswith(_TOOLS) and _IPYTHON not in filename:
            entries.append(traceback)
        traceback = traceback.tb_next
    files = [entry.tb_frame.f_code.co_filename for entry in entries]
    if any(file.startswith(_PACKAGE) for file in files):
        users = [entry for entry, file in zip(entries, files, strict=True) if is_users(file)]
        entries = users or entries[-1:]  # an error needs a line, be it ours
    return _of_entries(entries)


def ipython_traceback(error: BaseException) -> list[str]:
    """Return the traceback of an error and its causes as IPython shows it, each cut by ``shown_traceback``.

    The error keeps all its entries, for a debugger.
    """
    chain: list[BaseException] = [error]
    while True:
        last = chain[-1]
        cause = last.__cause__ if last.__cause__ or last.__suppress_context__ else last.__context__
        if cause is None or cause in chain:
            break
        chain.append(cause)
    whole = [one.__traceback__ for one in chain]
    style = ipython_shell().InteractiveTB
    try:
        for one in chain:
            one.__traceback__ = shown_traceback(one.__traceback__)
        lines: list[str] = style.structured_traceback(type(error), error, error.__traceback__, tb_offset=0)
        return lines
    finally:
        for one, traceback in zip(chain, whole, strict=True):
            one.__traceback__ = traceback


# IPython asks an error for its traceback by this name.
PathwaysError._render_traceback_ = ipython_traceback  # type: ignore[attr-defined]


def _of_entries(entries: Sequence[TracebackType]) -> TracebackType | None:
    kept: TracebackType | None = None
    # From the innermost outwards, since each entry holds the one within it.
    for entry in reversed(entries):
        kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, line_of(entry))
    return kept


def drop_notes_of_jax(error: BaseException | None) -> None:
    """Remove JAX's notes from one of our errors and from its causes."""
    while error is not None:
        if hasattr(error, "__notes__"):
            error.__notes__ = [note for note in error.__notes__ if "removed its internal frames" not in note]
        error = error.__cause__


def is_users_error(traceback: TracebackType | None) -> bool:
    """Return whether an error came from the user's own code, or a library it called, and not from this package."""
    users = False
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        # A library that the user's code called is the user's; one that we called is not.
        users = not filename.startswith(_PACKAGE) and (users or is_users(filename))
        traceback = traceback.tb_next
    return users


def users_view(method: Callable[P, R]) -> Callable[P, R]:
    """Return the function with its errors' tracebacks cut down to the user's lines.

    This concerns the package's own errors and those that the user's functions raise; others are bugs and keep theirs.
    """

    @functools.wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        try:
            return method(*args, **kwargs)
        except Exception as error:
            if not isinstance(error, PathwaysError) and not is_users_error(error.__traceback__):
                raise
            if isinstance(error, PathwaysError):
                drop_notes_of_jax(error)
            raise error.with_traceback(users_traceback(error.__traceback__))  # noqa: B904  (it is the same error)

    return wrapped


def traceback_line(traceback: TracebackType | None) -> str:
    """Return the innermost line of the user's own code in a traceback, or ``""``."""
    entry, found = users_traceback(traceback), ""
    while entry is not None:
        found = describe(entry.tb_frame.f_code.co_filename, line_of(entry))
        entry = entry.tb_next
    return found


def equation_line(eqn: Any) -> str:
    """Return the innermost line of the user's own code that an equation of a jaxpr comes from, or ``""``."""
    said = eqn.source_info.traceback
    return innermost(said.frames if said else ())


def equation_lines(eqn: Any) -> tuple[str, ...]:
    """Return the lines of the user's code that an equation comes from, innermost first, up to the call of this package.

    Args:
        eqn: of a jaxpr that this package traced, so the lines that called for that are not the step's.
    """
    said = eqn.source_info.traceback
    inside = itertools.takewhile(lambda one: not one.file_name.startswith(_PACKAGE), said.frames if said else ())
    lines = (describe(one.file_name, one.line_num) for one in inside if is_users(one.file_name))
    return tuple(dict.fromkeys(lines))


def innermost(frames: Iterable[object]) -> str:
    """Return the innermost line of the user's own code among a recorded traceback's frames, or ``""``.

    Args:
        frames: innermost first, with ``file_name`` and ``line_num`` (the frames of JAX's tracebacks).
    """
    found = users_frame(frames)
    return describe(*found) if found else ""


def users_frame(frames: Iterable[object]) -> tuple[str, int] | None:
    """Return file and line of the innermost frame of the user's own code, or None.

    Args:
        frames: as of ``innermost``.
    """
    for frame in frames:
        filename = getattr(frame, "file_name", "")
        if filename and is_users(filename):
            return filename, getattr(frame, "line_num", 0)
    return None


def portable_name(filename: str) -> str:
    """Return the name of a file without what only this machine has: a library's, from the folder of all libraries on.

    A user's file keeps its last part alone.
    """
    if filename.startswith(_PACKAGE):
        return f"/site-packages/{os.path.basename(_PACKAGE[:-1])}/{filename.removeprefix(_PACKAGE)}"
    if is_users(filename):
        return f"/recorded/{os.path.basename(filename)}"
    for folder in ("/site-packages/", "/dist-packages/", "/lib/python3."):
        if folder in filename:
            return folder + filename.rpartition(folder)[2]
    return filename if filename.startswith("<") else f"/lib/python3./{os.path.basename(filename)}"
