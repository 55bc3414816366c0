"""Events for other tools as tables: CSV, and pandas.

Traces for viewers are in ``results.chrome_trace`` and ``results.perfetto_trace``, saved runs in ``results``; figures
are drawn by the views.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from pathways_nb.errors import UsageError
from pathways_nb.trace.record import COLUMNS, Events


def to_csv(events: Events, path: str | Path) -> None:
    """Write all columns, one row for each event; times in seconds, parents and links separated by spaces."""
    columns = [events[name].tolist() for name in COLUMNS]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row in zip(*columns, strict=True):
            writer.writerow(" ".join(map(str, cell)) if isinstance(cell, tuple) else cell for cell in row)


def to_pandas(events: Events) -> Any:
    """Return all columns as a ``pandas.DataFrame``.

    Raises:
        UsageError: pandas is not installed.
    """
    try:
        import pandas  # type: ignore[import-untyped]
    except ImportError:
        fix = "pip install pandas, or use run.events or run.to_csv(path)"
        raise UsageError(f"to_pandas needs pandas: {fix}.") from None
    return pandas.DataFrame({name: events[name] for name in COLUMNS})
