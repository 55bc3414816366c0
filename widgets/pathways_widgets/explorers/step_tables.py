"""What is below the figure of a sharded step, as lines of text: its collectives, and its schedule after each pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pathways_nb.errors import size
from pathways_nb.trace.metrics import duration
from pathways_widgets.explorers.step_columns import DrawnStep

LETTERS = "A gather, a gather again, R reduction, a digit so many matrix products, | backward pass"


def collective_lines(picture: DrawnStep) -> list[str]:
    """Return a line for each collective: what it carries, its bytes and times, and how long the device waits for it."""
    rows = [("", "collective", "bytes", "start", "takes", "exposed", "of")]
    for number, one in enumerate(picture.collectives):
        exposed = duration(one.exposed) if one.exposed else ""
        times = duration(one.start), duration(one.end - one.start), exposed
        rows.append((str(number), one.kind, size(one.bytes), *times, one.words))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    words = rows[0].index("collective"), rows[0].index("of")
    return ["  ".join(_justified(row, widths, words)).rstrip() for row in rows]


def _justified(row: Sequence[str], widths: Sequence[int], words: Sequence[int]) -> Iterator[str]:
    """Yield the fields of a row, each as wide as its column: words to the left, numbers to the right."""
    for column, (text, wide) in enumerate(zip(row, widths, strict=True)):
        yield text.ljust(wide) if column in words else text.rjust(wide)


def pass_lines(picture: DrawnStep) -> list[str]:
    """Return the schedule before the passes and after each."""
    width = max((len(name) for name, _ in picture.passes), default=0)
    return [f"{name:{width + 1}} {line}" for name, line in picture.passes]
