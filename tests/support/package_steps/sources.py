"""Code of others, read where it is published: modules, cells of notebooks, doctests and READMEs, none of it kept here."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import importlib.machinery
import importlib.metadata
import inspect
import json
import linecache
import re
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import absl.flags


@contextlib.contextmanager
def _without(names: Sequence[str], folder: Path | None) -> Iterator[None]:
    """Put stand-ins for modules that read data; modules beside the imported one are forgotten afterwards."""
    before = dict(sys.modules)
    for name in names:
        sys.modules[name] = MagicMock(name=name, __spec__=importlib.machinery.ModuleSpec(name, None), __path__=[])
    try:
        yield
    finally:
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if name in names or (folder is not None and name not in before and isinstance(file, str) and Path(file).parent == folder):  # fmt: skip
                del sys.modules[name]
        sys.modules.update({name: before[name] for name in names if name in before})


def module(path: Path, without: Sequence[str] = ()) -> types.ModuleType:
    """Return a script as a module, with the modules beside it.

    Args:
        path: of the script.
        without: modules that only read data, which need not be installed.
    """
    sys.path.insert(0, str(path.parent))
    flags = set(absl.flags.FLAGS)
    try:
        with _without(without, path.parent):
            return importlib.import_module(path.stem)
    finally:
        for name in set(absl.flags.FLAGS) - flags:
            delattr(absl.flags.FLAGS, name)  # two scripts may have one of the same name
        sys.path.remove(str(path.parent))


def cells(path: Path, wanted: Sequence[int], **names: Any) -> dict[str, Any]:
    """Return the names that some cells of a notebook make; a line is ``name.ipynb[cell]:line``.

    Args:
        path: of the notebook.
        wanted: positions of the cells.
        **names: that the cells find.
    """
    found = json.loads(path.read_text())["cells"]
    parts = [(f"{path}[{at}]", "".join(found[at]["source"])) for at in wanted]
    return _executed(parts, names)


def installed(name: str, without: Sequence[str] = ()) -> types.ModuleType:
    """Return a module that is installed.

    Args:
        name: of the module.
        without: modules that only read data or write logs, which need not be installed.
    """
    with _without(without, None):
        return importlib.import_module(name)


def examples(holder: Any, until: str, **names: Any) -> dict[str, Any]:
    """Return the names that the examples in a docstring make, up to the first one with a text.

    Args:
        holder: what has the docstring.
        until: the text.
        **names: that they find.
    """
    parts = doctest.DocTestParser().get_examples(inspect.getdoc(holder) or "")
    last = next(at for at, one in enumerate(parts) if until in one.source)
    return _executed([(f"{holder.__name__}.__doc__", "".join(one.source for one in parts[: last + 1]))], names)


def readme(distribution: str, text: str, **names: Any) -> dict[str, Any]:
    """Return the names that a code block makes in the README that a distribution is published with.

    Args:
        distribution: installed.
        text: that the block has; the first one with it is taken.
        **names: that it finds.
    """
    payload = str(importlib.metadata.metadata(distribution).get_payload())
    block = next(one for one in re.findall(r"```py(?:thon)?\n(.*?)```", payload, re.DOTALL) if text in one)
    return _executed([(f"{distribution}/README.md", block)], names)


def _executed(parts: Sequence[tuple[str, str]], names: dict[str, Any]) -> dict[str, Any]:
    """Return the names that texts make, executed in order; errors and lines show them."""
    space: dict[str, Any] = {"__name__": "published", **names}
    sys.modules.setdefault("published", types.ModuleType("published"))
    for where, text in parts:
        linecache.cache[where] = (len(text), None, text.splitlines(keepends=True), where)
        exec(compile(text, where, "exec"), space)
    return space
