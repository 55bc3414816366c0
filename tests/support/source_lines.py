"""A counter of source lines: lines of code, of comments and of docstrings, and functions, by package.

``python -m tests.support.source_lines`` prints the table for this tree; with a folder, for the tree there, such as a
worktree of another commit.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from tests.conftest import ROOT

SOURCES = ("pathways_nb", "widgets", "datasets")
"""The folders that hold source; tests and notebooks are not counted."""


@dataclass
class Count:
    """Numbers of files, lines and functions.

    Args:
        files: files.
        lines: all lines, blank ones included.
        code: lines with at least one token that is neither a comment nor part of a docstring.
        comments: lines with a comment, also behind code.
        docstrings: lines of docstrings, also of those below a name.
        functions: functions and methods, nested ones included.
    """

    files: int = 0
    lines: int = 0
    code: int = 0
    comments: int = 0
    docstrings: int = 0
    functions: int = 0

    def add(self, other: Count) -> None:
        """Add another count to this one."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def text(self, name: str) -> str:
        """Return a line of the table."""
        of_lines = 100 * self.comments / self.lines if self.lines else 0
        of_thousand = 1000 * self.functions / self.lines if self.lines else 0
        return (
            f"{name:<36}{self.files:>6}{self.lines:>8}{self.code:>8}{self.docstrings:>8}{self.comments:>9}"
            f"{of_lines:>7.1f}{self.functions:>10}{of_thousand:>7.0f}"
        )


HEADING = (
    f"{'package':<36}{'files':>6}{'lines':>8}{'code':>8}{'docs':>8}{'comments':>9}{'%':>7}{'functions':>10}{'‰':>7}"
)


def count(text: str) -> Count:
    """Return the count of one file's text."""
    tree = ast.parse(text)
    documented = {line for node in ast.walk(tree) for line in _docstring_lines(node)}
    code, comments = set[int](), set[int]()
    layout = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in layout:
            code.update(range(token.start[0], token.end[0] + 1))
    functions = sum(isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) for node in ast.walk(tree))
    return Count(1, len(text.splitlines()), len(code - documented), len(comments), len(documented), functions)


def _docstring_lines(node: ast.AST) -> Iterator[int]:
    """Yield the lines of the texts that stand alone in a body: its docstring, and those below names."""
    body = getattr(node, "body", None)
    for statement in body if isinstance(body, list) else []:
        match statement:
            case ast.Expr(value=ast.Constant(value=str())):
                yield from range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def by_package(root: Path) -> dict[str, Count]:
    """Return the count of each folder with Python files, by its path below ``root``."""
    counts: dict[str, Count] = {}
    for path in sorted(path for folder in SOURCES for path in (root / folder).rglob("*.py")):
        counts.setdefault(str(path.parent.relative_to(root)), Count()).add(count(path.read_text()))
    return counts


def main(root: Path) -> None:
    """Print the table of a tree, with a last line for the whole."""
    whole = Count()
    print(HEADING)
    for name, one in by_package(root).items():
        print(one.text(name))
        whole.add(one)
    print(whole.text("all"))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT)
