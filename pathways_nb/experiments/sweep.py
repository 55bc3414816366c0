"""``pw.sweep``: call one function at every point of a grid; the results as a table, a curve and a file.

The function is called point by point in this thread: a point may attach devices of its own, and only one
controller can be current. A point that raises becomes a row with its error, and Ctrl-C keeps the finished rows: one bad
or slow point must not cost the results of all others.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Number, Real
from pathlib import Path
from typing import Any

import numpy as np

from pathways_nb.adopt.adopted_step import AdoptedStep
from pathways_nb.adopt.step_answers import StepAnswers
from pathways_nb.errors import UsageError, nearest
from pathways_nb.experiments.point_texts import plain, point_text, point_texts, value_text
from pathways_nb.experiments.swept_steps import elsewhere, step_columns
from pathways_nb.results.run import Run
from pathways_nb.trace.causality.headlines import sweep_headline
from pathways_nb.util.progress import Progress, tell_reader
from pathways_nb.util.text_table import Printed, Table
from pathways_nb.util.words import a_type_of, counted

ERROR = "error"
"""The column with the error of a point; ``""`` where there was none."""
_UNITS_OF_RUNS = {"makespan": "s", "dispatch": "s", "messages": "s", "transfer_bytes": "bytes", "peak_bytes": "bytes"}


_MOST_TIMELINES = 40


@dataclass(frozen=True, eq=False, repr=False)
class Sweep(Printed):
    """The results of a function at the points of a grid.

    Args:
        name: name of the function.
        axes: the values of each argument.
        rows: a dictionary for each finished point, in the order of nested loops, the last argument varying fastest: the
            arguments, the result's columns, and ``"error"``, the text of what was raised or ``""``.
        results: what the function returned for each row; ``None`` where it failed.
    """

    name: str
    axes: Mapping[str, Sequence[Any]]
    rows: Sequence[Mapping[str, Any]]
    results: Sequence[Any]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns: the arguments, then those of the results, then ``"error"``."""
        found = dict.fromkeys(name for row in self.rows for name in row)
        return (*self.axes, *(name for name in found if name not in self.axes and name != ERROR), ERROR)

    @property
    def points(self) -> int:
        """The number of points of the grid; ``len(rows)`` of them are finished."""
        return int(np.prod([len(values) for values in self.axes.values()]))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, column: str) -> np.ndarray:
        """Return one column as an array, in the order of ``rows``.

        Args:
            column: one of ``columns``.

        Returns:
            Floats with NaN where a row has no value, or an array of objects if the column is not numeric.

        Raises:
            UsageError: there is no such column (the nearest are named).
        """
        self._check("sweep[…]", column)
        values = [row.get(column) for row in self.rows]
        # Floats, because an integer column could not hold the NaN of a point that failed.
        if all(value is None or isinstance(value, Real) for value in values):
            return np.array([np.nan if value is None else value for value in values], float)
        return np.array(["" if value is None else value for value in values], object)

    def plot(self, x: str | None = None, y: str | None = None, by: str | Sequence[str] | None = None) -> Any:
        """Draw ``y`` over ``x``, one line for each value of ``by``.

        Args:
            x: column of the horizontal axis; ``None`` takes the first argument with several values.
            y: column of the vertical axis; ``None`` takes the first numeric column of the results.
            by: one argument or several; ``None`` takes all other arguments with several values.

        Returns:
            A figure, which a notebook displays.

        Raises:
            UsageError: no such column (the nearest are named), no numbers in ``y``, or several rows for one point of a
                line.
        """
        from pathways_widgets import curve

        several = [name for name, values in self.axes.items() if len(values) > 1] or list(self.axes)
        x = x or several[0]
        y = y or next((name for name in self.columns[len(self.axes) :] if self._is_number(name)), ERROR)
        # All other axes that vary, else lines of different points would be drawn as one.
        by = [name for name in several if name != x] if by is None else [by] if isinstance(by, str) else list(by)
        for column in (x, y, *by):
            self._check("plot", column)
        if not self._is_number(y):
            raise UsageError(f"plot(y={y!r}): there are no numbers in that column of {self.summary_line()}.")
        at, series = self._series(x, y, by)
        of_runs = all(isinstance(result, Run) for result in self.results if result is not None)
        unit = _UNITS_OF_RUNS.get(y) if of_runs else None  # a user's column of the same name may have any unit
        return curve(series, x, f"{y} in {unit}" if unit else y, at)

    def timelines(self) -> Any:
        """Draw the run of each point as a small timeline, one below the other on one scale of time.

        Returns:
            A figure, which a notebook displays: of the first 40 runs, if there are more.

        Raises:
            UsageError: the function returned no runs.
        """
        from pathways_widgets import thumbnails

        # What is the same at all points tells no two apart.
        named = [name for name, values in self.axes.items() if len(values) > 1] or list(self.axes)
        texts = point_texts([{name: row[name] for name in named} for row in self.rows])
        runs = {text: run for text, run in zip(texts, self.results, strict=True) if isinstance(run, Run)}
        if not runs:
            raise UsageError(f"timelines(): {self.summary_line()}; none returned a run, such as program.run(x) does.")
        seconds = {name: run.summary().makespan for name, run in runs.items()}
        shown = {name: (runs[name].events, runs[name].islands) for name in list(runs)[:_MOST_TIMELINES]}
        return thumbnails(shown, sweep_headline(seconds))

    def _series(self, x: str, y: str, by: Sequence[str]) -> tuple[list[Any], dict[str, list[float]]]:
        """Return the positions on the horizontal axis and, by the label of each line, the values at these positions.

        Args:
            x: column of the horizontal axis.
            y: column of the vertical axis; rows without a value are left out.
            by: columns that tell lines apart.

        Returns:
            Positions, numeric and rising or as text, and values of each line with NaN where there is none.

        Raises:
            UsageError: two rows of one line have the same position.
        """
        places = [row[x] for row in self.rows if row.get(y) is not None]
        at = [place for number, place in enumerate(places) if place not in places[:number]]  # lists are not hashable
        at = sorted(at) if all(isinstance(place, Real) for place in at) else at
        series: dict[str, list[float]] = {}
        for row in self.rows:
            if row.get(y) is not None:
                values = series.setdefault(", ".join(f"{name} {value_text(row[name])}" for name in by) or y, [])
                # Filled up when a line is met first: points may be missing, and lines have all positions in common.
                values += [np.nan] * (len(at) - len(values))
                if not np.isnan(values[at.index(row[x])]):
                    raise UsageError(f"plot: several points have {x}={value_text(row[x])}; tell them apart with by=.")
                values[at.index(row[x])] = float(row[y])
        return at if all(isinstance(place, Real) for place in at) else [value_text(place) for place in at], series

    def to_csv(self, path: str | Path | None = None) -> str | None:
        """Write ``columns`` and ``rows`` as comma-separated values.

        Args:
            path: the file; ``None`` returns the text instead.

        Returns:
            The text if no path is given, else ``None``.
        """
        text = io.StringIO()
        # One kind of line end on every system: the text is also returned, not only written.
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([plain(row.get(column)) for column in self.columns] for row in self.rows)
        if path is None:
            return text.getvalue()
        Path(path).write_text(text.getvalue(), "utf-8")
        return None

    def summary_line(self) -> str:
        """Return in one line how many points there are, how many are finished and how many failed."""
        failed = sum(bool(row[ERROR]) for row in self.rows)
        parts = [f"sweep of {self.name}: {counted(self.points, 'point')}"]
        if len(self.rows) < self.points:
            parts.append(f"interrupted, {len(self.rows)} done")
        return ", ".join([*parts, *([f"{failed} failed"] if failed else [])])

    def _table(self) -> Table:
        """Return the table that is printed; the column of errors only if a point failed."""
        failed = any(row[ERROR] for row in self.rows)
        columns = [column for column in self.columns if column != ERROR or failed]
        rows = [[value_text(row.get(column)) for column in columns] for row in self.rows]
        return Table(self.summary_line(), columns, rows)

    def _is_number(self, column: str) -> bool:
        """Return whether every value of ``column`` is a real number, and there is one."""
        values = [row[column] for row in self.rows if row.get(column) is not None]
        return bool(values) and all(isinstance(value, Real) for value in values)

    def _check(self, where: str, column: str) -> None:
        """Refuse a column that does not exist, on behalf of the call named ``where``.

        Raises:
            UsageError: naming the nearest columns and all of them.
        """
        if column not in self.columns:
            near = nearest(str(column), self.columns)
            meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
            raise UsageError(f"{where}: there is no column {column!r}{meant} Columns: {', '.join(self.columns)}.")


def sweep(fn: Callable[..., Any] | AdoptedStep, **axes: Iterable[Any]) -> Sweep:
    """Call ``fn`` with every combination of values, in the order of nested loops.

    A point that raises becomes a row with its error, and the sweep continues; if no point has a result, a line says so
    with the first error. Ctrl-C ends the sweep and keeps the finished rows. After two seconds a line of progress is
    shown.

    Args:
        fn: returns a run (its makespan, utilisation, … become columns; ``run_dispatch`` with an axis ``dispatch``),
            a dictionary of columns, a number, which becomes the column ``"value"``, or an adopted step. Or it is an
            adopted step, which goes to each ``chip=``, ``mesh=`` and ``options=`` as by ``step.on``.
        **axes: the values of each argument of ``fn``.

    Returns:
        The finished points, as a table.

    Raises:
        UsageError: ``fn`` is not callable, nothing varies, or the values of an argument are no list.
    """
    name = fn.name if isinstance(fn, AdoptedStep) else getattr(fn, "__name__", type(fn).__name__)
    fn = elsewhere(fn, axes) if isinstance(fn, AdoptedStep) else fn
    values = _listed_axes(fn, axes)
    points = [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]
    rows: list[dict[str, Any]] = []
    results: list[Any] = []
    try:
        for point in _with_progress(points):
            columns, result = _call_at(fn, point)
            rows.append({**point, **columns})
            results.append(result)
    except KeyboardInterrupt:
        # Ctrl-C may come between the two lines that store a point.
        del rows[len(results) :]
        tell_reader(f"sweep: interrupted; {len(rows)} of {counted(len(points), 'point')} are done and kept.")
    if rows and all(row[ERROR] for row in rows):
        failed, first = counted(len(rows), "point"), point_text({name: rows[0][name] for name in values})
        tell_reader(f"sweep: no result: {failed} failed, all there are; the first, {first}: {rows[0][ERROR]}")
    return Sweep(name, values, rows, results)


def _listed_axes(fn: Callable[..., Any], axes: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
    """Return the values of each argument as lists; iterators are consumed once, so that all points see the same values.

    Raises:
        UsageError: ``fn`` is not callable, nothing varies, or the values of an argument are no list.
    """
    if not callable(fn):
        raise UsageError(f"sweep({fn!r}): that cannot be called; write pw.sweep(fn, n=[1, 2]).")
    if not axes:
        raise UsageError("sweep: nothing varies; name arguments of the function with their values: n=[64, 512].")
    for name, values in axes.items():
        if name == ERROR:
            raise UsageError(f"sweep({ERROR}=…): that is the column of errors; call the argument something else.")
        if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
            raise UsageError(f"sweep({name}={values!r}): write a list of values, {name}=[{values!r}].")
    # An iterator could be read once only, and every point of the other arguments needs its values.
    found = {name: list(values) for name, values in axes.items()}
    for name, listed in found.items():
        if not listed:
            raise UsageError(f"sweep({name}=[]): there is no value to call the function with.")
    return found


def _call_at(fn: Callable[..., Any], point: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Call ``fn`` at one point.

    Returns:
        The columns of the result, with ``"error"``, and the result itself; ``None`` if ``fn`` raised.
    """
    try:
        result = fn(**point)
        # Inside the try: a result without columns is an error of its point, not of the sweep.
        return {ERROR: "", **_columns_of(result, point)}, result
    except Exception as error:  # any error of the user's function belongs in its row
        return {ERROR: f"{type(error).__name__}: {error}"}, None


def _columns_of(result: Any, point: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a result: of a run, a step, a number or a dictionary.

    Args:
        result: what the function returned.
        point: the arguments, whose names a column must not repeat.

    Raises:
        UsageError: it is none of these, or has a column of an argument's name.
    """
    if isinstance(result, StepAnswers):
        return step_columns(result, ERROR)
    if isinstance(result, Run):
        return {f"run_{name}" if name in point else name: value for name, value in _run_columns(result).items()}
    # A loss is often an array without dimensions.
    if isinstance(result, Number) or (isinstance(result, np.ndarray) and result.ndim == 0):
        return {"value": plain(result)}
    if not isinstance(result, Mapping):
        raise UsageError(f"it returned {a_type_of(result)}; return a run, a dictionary of columns, or a number.")
    taken = [name for name in result if name in point or name == ERROR]
    if taken:
        raise UsageError(f"it returned a column {taken[0]!r}, which is there already; give it another name.")
    return {str(name): plain(value) for name, value in result.items()}


def _run_columns(run: Run) -> dict[str, Any]:
    """Return the figures of a run: seconds, bytes and counts; the utilisation is the mean over all devices."""
    found = run.summary()
    # Weighted by their devices: islands may have different sizes.
    mean = float(np.average(found.utilisation, weights=run.islands)) if sum(run.islands) else 0.0
    columns = {"makespan": found.makespan, "utilisation": mean, "dispatch": found.dispatch, "messages": found.messages}
    columns |= {"launches": found.launches, "transfers": found.transfers, "transfer_bytes": found.transfer_bytes}
    return columns | {"peak_bytes": found.peak.bytes if found.peak else 0, "failed": found.failed}


def _with_progress(points: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the points one by one; show a line of progress once the sweep takes long."""
    with Progress() as progress:
        for number, point in enumerate(points, 1):
            # A function in place of the text: values are turned into text only if the line is printed.
            progress.tell(partial(_progress_line, number, len(points), point))
            yield point


def _progress_line(number: int, total: int, point: Mapping[str, Any]) -> str:
    """Return the line of progress for point ``number`` of ``total``."""
    return f"sweep: point {number} of {total}: {point_text(point)}"
