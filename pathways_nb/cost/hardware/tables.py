"""Chips and networks from a name or a file: the packaged table, and a user's own JSON.

A file holds one object: ``{"name": "mine", "base": "tpu_v5p", "hbm_bw": 2e12}``. ``base`` fills in what is not
written; a value may carry its origin as the packaged table does, ``[2e12, "measured here", "stream triad"]``. All
tables, a user's and a stored calibration's included, pass through ``built``, so that none is trusted unchecked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pathways_nb.cost.hardware.parameters import Origin, Parameters, check, origin_of, required, rules, tidy
from pathways_nb.errors import UsageError, nearest
from pathways_nb.util import json_text
from pathways_nb.util.words import a_type_of

P = TypeVar("P", bound=Parameters)


@cache
def _table() -> Mapping[str, Any]:
    """Return the packaged table, read once."""
    from pathways_datasets import hardware

    return hardware()


def names(section: str) -> list[str]:
    """Return the names in a section of the packaged table, ``"chips"`` or ``"networks"``."""
    return list(_table()[section])


def find(cls: type[P], section: str, what: Any, asked: str = "") -> P:
    """Return the entry of a name, the one that a JSON file describes, or ``what`` itself if it is an entry.

    Args:
        cls: class of the entry.
        section: of the packaged table.
        what: name, path of a ``.json`` file, or an instance of ``cls``.
        asked: what the user typed, for errors; by default ``chip('name')``.

    Returns:
        The entry.

    Raises:
        UsageError: an unknown name (the nearest are listed, then all), or a file that cannot be read or says what no
            hardware has.
    """
    if isinstance(what, cls):
        return what
    if isinstance(what, PathLike) or (isinstance(what, str) and what.endswith(".json")):
        return _from_file(cls, section, Path(what))
    # Also the packaged table is checked: somebody may have edited it.
    if isinstance(what, str) and what in _table()[section]:
        return built(cls, "hardware.json", what, _table()[section][what])
    # All names are listed, too: they are few, and the nearest one may not be meant.
    asked, known = asked or f"{cls.__name__.lower()}({what!r})", names(section)
    near = nearest(what, known) if isinstance(what, str) else []
    meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    if isinstance(what, str) and what.partition(":")[0] in known and ":" in what:  # as ``pw.adopt`` takes it
        name, _, behind = what.partition(":")
        meant = f"; write {name!r}, and in attach {behind!r} as topology=(4, 4, 4), one number for each axis."
    raise UsageError(f"{asked}: there is none of this name{meant} Known: {', '.join(known)}; or a path to .json.")


def _from_file(cls: type[P], section: str, path: Path) -> P:
    """Return the entry that a user's JSON file describes.

    Raises:
        UsageError: a file that cannot be read, is no object, or has an unknown base.
    """
    try:
        written = json_text.read(path)
    except (FileNotFoundError, json_text.DamagedError) as error:
        what = f"cannot be read ({error})" if isinstance(error, FileNotFoundError) else error
        raise UsageError(f"{path}: {what}.") from None
    if not isinstance(written, dict):
        raise UsageError(f'{path}: holds {a_type_of(written)}; write one object, {{"base": …, field: value}}.')
    # These two are no parameters; what is left are fields, which ``built`` checks.
    name, base = written.pop("name", path.stem), written.pop("base", None)
    for field, text in (("name", name), ("base", base)):
        if text is not None and not (isinstance(text, str) and text):
            raise UsageError(f"{path}: {field} is {json_text.shortened(text)}; write a text.")
    if isinstance(base, str) and base.endswith(".json"):  # a chain of files could be a circle
        raise UsageError(f"{path}: base is {json_text.shortened(base)}; write a name of the table, not a file.")
    # An unknown base is an error of the file, so its path stands in front.
    try:
        under = None if base is None else find(cls, section, base)
    except UsageError as error:
        raise UsageError(f"{path}: base: {error}") from None
    return built(cls, str(path), name, written, under)


def built(cls: type[P], where: str, name: str, written: Mapping[str, Any], base: P | None = None) -> P:
    """Return an entry from a table's values, over those of ``base``.

    Args:
        cls: class of the entry.
        where: the table's name, for errors.
        name: of the new entry.
        written: field to value, or to value and origin.
        base: entry whose values are used where ``written`` has none; None for none.

    Raises:
        UsageError: a field that does not exist (the nearest are named), that is missing, or that no hardware has.
    """
    # Values and origins of the base first, so that what is written replaces both.
    values = {n: getattr(base, n) for n in rules(cls)} if base else {}
    origins = dict(base.origins) if base else {}
    for field, entry in written.items():
        values[field], origins[field] = _value_and_origin(where, field, entry)
    check(cls, where, values)
    missing = [field for field in required(cls) if field not in values]
    if missing:
        raise UsageError(f'{where}: lacks {", ".join(missing)}. Write them, or "base": NAME to take them from there.')
    return cls(base=name, origins=MappingProxyType(origins), **values)


def entries(parameters: Parameters) -> dict[str, Any]:
    """Return each field that has a value as a list of value, kind of origin and source, which ``built`` reads."""
    values = {name: getattr(parameters, name) for name in rules(type(parameters))}
    return {name: [value, *parameters.origin(name)] for name, value in values.items() if value is not None}


def _value_and_origin(where: str, field: str, entry: Any) -> tuple[Any, Origin]:
    """Return a value of a table and its origin, which is the user's own if none is written.

    Raises:
        UsageError: an origin of no known kind.
    """
    # A list may be a value, too, such as the sides of a pod: one with a text behind it has an origin.
    if not (isinstance(entry, list) and len(entry) in (2, 3) and isinstance(entry[1], str)):
        return tidy(entry), Origin("yours")
    value, *origin = entry
    try:
        return tidy(value), origin_of(*origin)
    except ValueError as error:
        raise UsageError(f"{where}: {field}: {error}.") from None
