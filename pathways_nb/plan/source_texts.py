"""The text of lines of the user's code, kept where a line is named, so that it is readable where the file is not.

A saved step shows the lines that cost most on a machine that has no copy of the code. Only lines around those that are
named are kept, without the folder that the file is in.
"""

from __future__ import annotations

import hashlib
import linecache
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pathways_nb.plan.source_lines import describe, is_users

AROUND = 4
"""Lines above and below each line that are kept as well."""
_MOST_LETTERS = 200
"""Length at which a line is cut."""
_SAID = re.compile(r"(.*?)(?::|, line )(\d+)")


def parts_of(line: str) -> tuple[str, int]:
    """Return file and number of a line, such as ``("train.py", 12)`` or ``("Cell In[3]", 4)``; ``("", 0)`` for none.

    Args:
        line: as ``plan.source_lines.describe`` writes it.
    """
    found = _SAID.fullmatch(line)
    return (found[1], int(found[2])) if found else ("", 0)


@dataclass(frozen=True)
class SourceTexts:
    """Lines of code with their texts.

    Args:
        files: by the name of a file, or ``"Cell In[3]"``, numbers and texts of lines, ascending.
    """

    files: Mapping[str, tuple[tuple[int, str], ...]] = field(default_factory=dict)

    def text_of(self, line: str) -> str:
        """Return the text of a line such as ``"train.py:12"``, without its indent; empty if it is not known."""
        file, number = parts_of(line)
        return dict(self.files.get(file, ())).get(number, "").strip()

    def around(self, line: str, lines: int = AROUND) -> tuple[tuple[int, str], ...]:
        """Return the lines around a line with their numbers; nothing if they are not known.

        Args:
            line: such as ``"train.py:12"``.
            lines: above and below it.
        """
        file, number = parts_of(line)
        return tuple(one for one in self.files.get(file, ()) if abs(one[0] - number) <= lines)

    def agrees_with(self, other: SourceTexts) -> bool:
        """Return whether lines that both know have the same texts, and there are such: no line has moved."""
        shared = [(dict(texts), dict(other.files[file])) for file, texts in self.files.items() if file in other.files]
        both = [(one[number], same[number]) for one, same in shared for number in one.keys() & same.keys()]
        return bool(both) and all(one == same for one, same in both)


def texts_of(places: Iterable[tuple[str, int]], wanted: Iterable[str]) -> SourceTexts:
    """Return the texts of lines, as far as their files are here.

    Args:
        places: paths of files and numbers of lines, as a compiler names them.
        wanted: the lines to keep, as ``plan.source_lines.describe`` writes them.
    """
    asked, paths = set(wanted), dict[str, set[str]]()
    numbers: dict[str, set[int]] = {}
    for path, number in places:
        if is_users(path) and (said := describe(path, number)) in asked:
            file, _ = parts_of(said)
            paths.setdefault(file, set()).add(path)
            numbers.setdefault(file, set()).add(number)
    found: dict[str, tuple[tuple[int, str], ...]] = {}
    for file, where in paths.items():
        # Two files of one name: nobody could say which of them a line is in.
        if len(where) > 1:
            continue
        (path,) = where
        linecache.checkcache(path)
        texts = linecache.getlines(path)
        near = {n + by for n in numbers[file] for by in range(-AROUND, AROUND + 1)}
        kept = tuple((n, texts[n - 1].rstrip()[:_MOST_LETTERS]) for n in sorted(near) if 1 <= n <= len(texts))
        if kept:
            found[file] = kept
    return SourceTexts(found)


def digest_of_files(paths: Iterable[str]) -> str:
    """Return a digest of the user's files among some, by their contents alone; those that are not here count as empty.

    Args:
        paths: of files, or names of cells.
    """
    found = []
    for path in filter(is_users, set(paths)):
        linecache.checkcache(path)
        found.append(hashlib.sha256("".join(linecache.getlines(path)).encode()).hexdigest())
    return hashlib.sha256("".join(sorted(found)).encode()).hexdigest()
