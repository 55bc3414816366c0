"""The points of a sweep, and the values in its table, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pathways_nb.util.words import axes_in_words


def point_text(point: Mapping[str, Any]) -> str:
    """Return the arguments of a point as text: ``"n=64, chunks=2"``."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in point.items())


def point_texts(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the text of each point, with a number behind one that is there already: values may have equal texts."""
    found: Counter[str] = Counter()
    texts = []
    for text in map(point_text, points):
        found[text] += 1
        texts.append(f"{text} ({found[text]})" if found[text] > 1 else text)
    return texts


def plain(value: Any) -> Any:
    """Return NumPy scalars as Python's, functions as their names, and anything else unchanged."""
    if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0:
        return value.item()
    return getattr(value, "__name__", value) if callable(value) else value


def value_text(value: Any) -> str:
    """Return the text of a value in a table or a legend: floats with four digits, of other values the first line."""
    value = plain(value)
    if value is None or value == "":
        return ""
    if isinstance(value, Mapping):
        return axes_in_words(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value).splitlines()[0]
