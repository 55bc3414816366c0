"""The counter of source lines tells code, comments and docstrings apart."""

from __future__ import annotations

from tests.support.source_lines import Count, count

TEXT = '''"""A module
of two lines."""

import os  # why


NAME = 1
"""What it is."""

# a comment


def function(value: str = "x") -> str:
    """Return it."""

    def inner() -> str:
        return """of two
        lines"""

    return value or inner()
'''


def test_each_line_is_counted_as_what_it_is():
    assert count(TEXT) == Count(files=1, lines=20, code=7, comments=2, docstrings=4, functions=2)


def test_an_empty_file_has_nothing():
    assert count("") == Count(files=1)
