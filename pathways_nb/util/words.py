"""Numbers and types in sentences: ``"1 device"``, ``"2 devices"``, ``"an int"``."""

from __future__ import annotations


def plural(count: float, thing: str, ending: str = "s") -> str:
    """Return the word for so many things: ``thing`` itself for one, else with its ending; a last y becomes ies."""
    if count == 1:
        return thing
    return f"{thing[:-1]}ies" if thing.endswith("y") else thing + ending


def counted(count: int, thing: str, ending: str = "s") -> str:
    """``"1 launch"``, ``"2 launches"``."""
    return f"{count} {plural(count, thing, ending)}"


def a_type_of(value: object) -> str:
    """``"a str"``, ``"an int"``: the type of a value with its article."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeio' or name.startswith('nd') else 'a'} {name}"
