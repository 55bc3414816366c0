"""Functions of the user's that travel to hosts, with the modules that the hosts cannot import.

A function from a notebook travels by value anyway. One from a module travels by name, which the hosts would import; so
modules of the user's own, which are not installed, are sent along by value.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import sysconfig
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from pathways_nb.errors import UsageError
from pathways_nb.runtime.lowering.compiled_steps import CompiledStep


def packed_work(action: CompiledStep) -> bytes:
    """Return what runs on a host as bytes.

    Raises:
        UsageError: it holds something that cannot travel.
    """
    label = action.label
    try:
        return by_value(action.host)
    except Exception as error:  # of whatever class what it holds raises
        line = f" ({label.line})" if label.line else ""
        raise UsageError(
            f"{label.name} of {label.program}{line} cannot travel to its host: {type(error).__name__}: {error}. Make "
            f"files, locks, generators and connections inside the function, at its first call."
        ) from error


def by_value(value: Any) -> bytes:
    """Pickle a value, with functions of the user's own modules by value."""
    cloudpickle = importlib.import_module("ray.cloudpickle")
    with contextlib.ExitStack() as stack:
        for module in _users():
            cloudpickle.register_pickle_by_value(module)
            stack.callback(cloudpickle.unregister_pickle_by_value, module)
        return bytes(cloudpickle.dumps(value))


def _users() -> Iterator[ModuleType]:
    """Yield the modules that were imported from files that are not installed."""
    installed = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    ours = ("pathways_nb", "pathways_widgets", "pathways_datasets", "__main__")
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name.partition(".")[0] not in ours and not str(file).startswith(installed):
            yield module
