"""Tables of columns, such as those of comparisons, as files of comma-separated values."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np


def write_columns(path: str | Path, table: Mapping[str, np.ndarray]) -> None:
    """Write columns of equal length, with a first line of their names.

    Args:
        path: name of the file.
        table: by name, the values of each column, (rows,).
    """
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*(column.tolist() for column in table.values()), strict=True))
