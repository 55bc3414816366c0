"""Lines of a recorded text: what is stored names no machine, and what is read names the user's files as they are now.

Between recording and reading, files move, cells are edited, and kernels have other folders. The same operations are
found in both, so each tells where a line is now; a line that none of them is on moves with the nearest one above it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pathways_nb.adopt.step_fingerprint import CountedOperation
from pathways_nb.plan.source_lines import portable_name

Position = tuple[str, int]
"""A file and a line."""
_FILES, _LOCATIONS = "FileNames\n", "FileLocations\n"
_FILE = re.compile(r'^(\d+) "(.*)"$', re.MULTILINE)
_SAID = re.compile(r'(source_file=")([^"]*)("(?:[^}\n]*?source_line=)?)(\d*)')
"""File and line beside an operation, as warnings have them."""
_LOCATION = re.compile(r"^(\d+ \{file_name_id=)(\d+)(\b.*? line=)(\d+)( end_line=)(\d+)", re.MULTILINE)


def portable(text: str, names: Mapping[str, str]) -> str:
    """Return a compiled text with other names of files.

    Args:
        text: of a module.
        names: by the file that the text names.
    """
    head, files, rest = _table(text, _FILES)
    text = head + _FILE.sub(lambda found: f'{found[1]} "{names.get(found[2], found[2])}"', files) + rest
    return _SAID.sub(
        lambda found: f"{found[1]}{names.get(found[2], portable_name(found[2]))}{found[3]}{found[4]}", text
    )


def portable_names(texts: Iterable[str], counted: Sequence[CountedOperation]) -> dict[str, str]:
    """Return a name without this machine for every file of some texts and of a step.

    Args:
        texts: of compiled modules.
        counted: of the step.
    """
    named = [found[2] for text in texts for found in _FILE.finditer(_table(text, _FILES)[1])]
    found, taken = dict[str, str](), Counter[str]()
    for name in dict.fromkeys([*named, *(one.at[0] for one in counted if one.at)]):
        plain = portable_name(name)
        taken[plain] += 1
        # Two files of the user may have one name.
        folder, _, last = plain.rpartition("/")
        found[name] = plain if taken[plain] == 1 else f"{folder}/{taken[plain]}/{last}"
    return found


def lines_by_key(counted: Iterable[CountedOperation]) -> dict[str, list[Position | None]]:
    """Return where the operations of each kind are, in their order."""
    found: dict[str, list[Position | None]] = defaultdict(list)
    for one in counted:
        found[one.key].append(one.at)
    return dict(found)


def moved_lines(
    recorded: Mapping[str, Sequence[Position | None]], now: Mapping[str, Sequence[Position | None]]
) -> dict[Position, Position]:
    """Return where each line of a recording is now, by the operations on it.

    Args:
        recorded: where operations were.
        now: where they are.
    """
    votes: dict[Position, Counter[Position]] = defaultdict(Counter)
    for key, positions in recorded.items():
        for was, is_ in zip(positions, now.get(key, ()), strict=False):
            if was is not None and is_ is not None:
                votes[was][is_] += 1
    return {was: counts.most_common(1)[0][0] for was, counts in votes.items()}


def with_lines(text: str, moved: Mapping[Position, Position]) -> str:
    """Return a recorded text that names files and lines as they are now.

    Args:
        text: of a module.
        moved: where lines are now.
    """
    head, files, rest = _table(text, _FILES)
    between, locations, tail = _table(rest, _LOCATIONS)
    names = {int(found[1]): found[2] for found in _FILE.finditer(files)}
    numbers = {name: number for number, name in names.items()}
    lines: dict[str, list[int]] = defaultdict(list)
    for name, line in sorted(moved):
        lines[name].append(line)

    def now(name: str, line: int) -> Position:
        if name not in lines:
            return name, line
        nearest = lines[name][max(bisect_right(lines[name], line) - 1, 0)]
        file, at = moved[name, nearest]
        return file, line + at - nearest

    def moved_row(found: re.Match[str]) -> str:
        line, end = int(found[4]), int(found[6])
        file, at = now(names.get(int(found[2]), ""), line)
        number = numbers.setdefault(file, max(numbers.values()) + 1) if file else int(found[2])
        return f"{found[1]}{number}{found[3]}{at}{found[5]}{end + at - line}"

    def moved_words(found: re.Match[str]) -> str:
        file, at = now(found[2], int(found[4] or 0))
        return f"{found[1]}{file}{found[3]}{at if found[4] else ''}"

    locations = _LOCATION.sub(moved_row, locations)
    added = "".join(f'{number} "{name}"\n' for name, number in numbers.items() if number not in names)
    return _SAID.sub(moved_words, head + files + added + between + locations + tail)


def _table(text: str, title: str) -> tuple[str, str, str]:
    """Return a text in three parts: up to a table's title, the table's rows, and the rest."""
    begin = text.find(f"\n{title}")
    if begin < 0:
        return text, "", ""
    begin += 1 + len(title)
    end = text.find("\n\n", begin) + 1
    return text[:begin], text[begin:end], text[end:]
