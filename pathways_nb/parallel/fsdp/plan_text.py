"""A plan's buckets as a short text that can be typed: one line for each bucket, or for many alike.

``layers.3`` is everything whose name begins so, ``layers.0-3`` four layers in one bucket, and
``layers.3.up, layers.3.gate`` two parameters. A line with ``*`` is a bucket for each text that the ``*`` may stand for;
it takes what lines without one leave. ``kept`` at the end of a line keeps the bucket gathered. Lines after
``backward:`` are the buckets of the backward pass, if they differ. ``pass: late count=2`` is a pass of the user's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pathways_nb.errors import PlanError, did_you_mean
from pathways_nb.parallel.fsdp.fsdp_plan import Bucket, FsdpPlan
from pathways_nb.parallel.fsdp.passes.plan_passes import PassChoice

HEADING, PASS = "backward:", "pass:"
KEPT = "kept"


class _BucketLine(NamedTuple):
    """One line: its number, the parts of each name on it, and whether its buckets stay gathered."""

    number: int
    items: tuple[tuple[str, ...], ...]
    keep: bool

    @property
    def starred(self) -> bool:
        return any("*" in item for item in self.items)


def plan_of_text(text: str, names: Sequence[str], **options: Any) -> FsdpPlan:
    """Return the plan that a text describes.

    Args:
        text: its lines; ``;`` ends a line, too.
        names: of the parameters of the model, in their order.
        **options: further arguments of ``FsdpPlan``.

    Raises:
        PlanError: naming the line that names no parameter, or the parameter that is in no bucket or in two.
    """
    sides: list[list[_BucketLine]] = [[]]
    passes = dict[str, PassChoice]()
    for number, line in enumerate(re.split(r"[\n;]", text), 1):
        if line.strip() == HEADING and len(sides) == 1:
            sides.append([])
        elif line.strip().startswith(PASS):
            choice = _pass(number, line.strip().removeprefix(PASS))
            passes[choice.name] = choice
        elif line.strip():
            sides[-1].append(_line(number, line))
    model = ModelNames(names)
    forward, *backward = (tuple(_buckets(lines, model)) for lines in sides)
    plan = FsdpPlan(forward, backward[0] if backward else None, passes=tuple(passes.values()), **options)
    plan.check(names)
    return plan


def text_of_plan(plan: FsdpPlan, names: Sequence[str]) -> str:
    """Return a plan's buckets and passes as a text that ``plan_of_text`` reads."""
    model = ModelNames(names)
    lines = _lines_of(plan.buckets, model)
    if plan.backward is not None:
        lines += [HEADING, *_lines_of(plan.backward, model)]
    return "\n".join([*lines, *(f"{PASS} {one}" for one in plan.passes)])


class ModelNames:
    """The names of a model's parameters, and what begins them.

    Args:
        names: of the parameters, in their order.
    """

    def __init__(self, names: Sequence[str]):
        self.names, self.parts = tuple(names), {name: tuple(name.split(".")) for name in names}
        self.beginning: dict[tuple[str, ...], list[str]] = {}
        self._position = {name: position for position, name in enumerate(names)}
        for name, parts in self.parts.items():
            for count in range(1, len(parts) + 1):
                self.beginning.setdefault(parts[:count], []).append(name)

    def matches(self, item: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
        """Return the names that begin as an item says, each with what every ``*`` stands for."""
        if item in self.beginning:
            return [(name, ()) for name in self.beginning[item]]
        return [(name, stars) for name, parts in self.parts.items() if (stars := _stars(item, parts)) is not None]

    def line(self, params: Iterable[str]) -> str:
        """Return some names as one line, in which whole parts of the model and ranges of numbers are one item each."""
        # The shortest beginning of each name of which the line has every name.
        chosen = sorted(params, key=self._position.__getitem__)
        found = Counter(beginning for name in chosen for beginning in self._beginnings(name))
        items = dict.fromkeys(
            next(one for one in self._beginnings(name) if found[one] == len(self.beginning[one])) for name in chosen
        )
        return ", ".join(_in_ranges(map(".".join, items)))

    def _beginnings(self, name: str) -> list[tuple[str, ...]]:
        parts = self.parts[name]
        return [parts[: count + 1] for count in range(len(parts))]


def _buckets(lines: Sequence[_BucketLine], model: ModelNames) -> Iterator[Bucket]:
    """Yield the buckets of the lines of one pass, those of lines without ``*`` first."""
    taken = set[str]()
    # Stable: among lines of one kind the order is that of the text, and so of the buckets.
    for line in sorted(lines, key=lambda line: line.starred):
        found: dict[tuple[str, ...], dict[str, None]] = {}
        for item in line.items:
            matches = model.matches(item)
            if not matches:
                names, wrong = model.names, ".".join(item)
                near = did_you_mean(wrong, {".".join(beginning): None for beginning in model.beginning})
                raise PlanError(
                    f"line {line.number} of the buckets: {wrong!r} is no parameter and no part of the model.{near} "
                    f"Write names such as {names[-1]}, or * for each of their parts."
                )
            for name, stars in matches:
                if not (line.starred and name in taken):
                    found.setdefault(stars, {})[name] = None
        taken.update(name for bucket in found.values() for name in bucket)
        yield from (Bucket(tuple(bucket), line.keep) for bucket in found.values())


def _pass(number: int, text: str) -> PassChoice:
    """Return the pass that a line names.

    Raises:
        PlanError: naming the line.
    """
    try:
        if not text.strip():
            raise PlanError(f"name a pass behind {PASS!r}, as in `pass: late count=2`.")
        return PassChoice.read(text)
    except PlanError as error:
        raise PlanError(f"line {number} of the buckets: {error}") from None


def _line(number: int, text: str) -> _BucketLine:
    """Return a line that is not empty."""
    words = re.findall(r"[^,\s]+", text)
    # A line of this word alone names a parameter that is called so.
    keep = words[-1:] == [KEPT] and len(words) > 1
    return _BucketLine(number, tuple(tuple(word.split(".")) for word in words[: len(words) - keep]), keep)


def _stars(item: tuple[str, ...], parts: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return what each ``*`` stands for if a name begins as an item says; ``None`` if it does not."""
    if len(item) > len(parts):
        return None
    found = []
    for wanted, part in zip(item, parts, strict=False):
        if wanted == "*":
            found.append(part)
        elif wanted != part:
            span = re.fullmatch(r"(\d+)-(\d+)", wanted) if "-" in wanted else None
            if span is None or not part.isdecimal() or not int(span[1]) <= int(part) <= int(span[2]):
                return None
    return tuple(found)


# ---- a text from a plan


def _lines_of(buckets: Sequence[Bucket], model: ModelNames) -> list[str]:
    """Return a line for each bucket; those that are alike but for a number are one line with a ``*`` where it fits."""
    wanted = _sets(buckets)
    lines = {bucket: model.line(bucket.params) + (f" {KEPT}" if bucket.keep else "") for bucket in buckets}
    alike: dict[str, list[Bucket]] = {}
    for bucket, line in lines.items():
        alike.setdefault(_template(line), []).append(bucket)
    starred = [pair for pair in alike.items() if "*" in pair[0] and len(pair[1]) > 1]
    for template, members in sorted(starred, key=lambda pair: -len(pair[1])):
        shorter = lines | dict.fromkeys(members, template)
        parsed = [_line(number, line) for number, line in enumerate(dict.fromkeys(shorter.values()))]
        # A star may stand for more than was meant, so a line with one is taken only if it gives the same buckets.
        if _sets(_buckets(parsed, model)) == wanted:
            lines = shorter
    return list(dict.fromkeys(lines.values()))


def _sets(buckets: Iterable[Bucket]) -> set[tuple[frozenset[str], bool]]:
    return {(frozenset(bucket.params), bucket.keep) for bucket in buckets}


def _in_ranges(items: Iterable[str]) -> Iterator[str]:
    """Yield items, of which those that end in numbers in a row are one."""
    rows: list[tuple[str, int, int] | str] = []
    for item in items:
        head, _, last = item.rpartition(".")
        row = rows[-1] if rows else ""
        if last.isdecimal() and isinstance(row, tuple) and (row[0], row[2] + 1) == (head, int(last)):
            rows[-1] = head, row[1], int(last)
        else:
            rows.append((head, int(last), int(last)) if last.isdecimal() and str(int(last)) == last else item)
    for row in rows:
        if isinstance(row, str):
            yield row
        else:
            head, first, end = row
            yield ".".join(part for part in (head, str(first) if first == end else f"{first}-{end}") if part)


def _template(line: str) -> str:
    """Return a line with a ``*`` in place of the number of a block, if it names parts of one numbered block only."""
    numbers = set(re.findall(r"(?<![\w-])\d+(?![\w-])", line))
    starred = re.sub(r"(?<![\w-])\d+(?![\w-])", "*", line)
    one_block = len(numbers) == 1 and all(part.count(".*") <= 1 and "*" in part for part in starred.split(", "))
    return starred if one_block else line
