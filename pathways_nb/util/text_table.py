"""Small tables for people: rows of words below a title, as text and as HTML.

Results such as ``run.idle()`` subclass ``Printed``, so a terminal and a notebook show the same table. Long tables are
cut, since they are for reading.
"""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

MOST_ROWS = 20
"""Number of rows that are shown of a long table."""


class Table(NamedTuple):
    """A title, the names of the columns, and the words of each row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def left_out(self) -> list[str]:
        """A line about rows that are not shown, if there are any."""
        more = len(self.rows) - MOST_ROWS
        return [f"… and {more} more"] if more > 0 else []


class Printed(ABC):
    """Something that is shown as a table."""

    @abstractmethod
    def _table(self) -> Table:
        """Return the table to show."""

    def __repr__(self) -> str:
        table = self._table()
        shown = [table.columns, *table.rows[:MOST_ROWS]]
        # The first column has names and is aligned to the left, the others have numbers.
        wide, *widths = [max(map(len, cells)) for cells in zip(*shown, strict=True)]
        lines = []
        for first, *rest in shown:
            cells = [first.ljust(wide), *(cell.rjust(width) for cell, width in zip(rest, widths, strict=True))]
            lines.append("  ".join(cells))
        return "\n  ".join([table.title, *lines, *table.left_out])

    def _repr_html_(self) -> str:
        table = self._table()
        # Escaped: names are the user's, and a saved run may be a stranger's.
        head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
        rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in table.rows[:MOST_ROWS])
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        caption = f'<caption style="text-align:left">{html.escape(table.title)}</caption>'
        return f"<table>{caption}<tr>{head}</tr>{body}</table>{''.join(map(html.escape, table.left_out))}"
