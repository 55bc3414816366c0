"""The notebook's door: ``%%pathways`` and ``%pathways``. They parse options and do nothing else.

The body of a cell is compiled under the cell's own name, so tracebacks point at the right line, and runs in the
user's namespace inside ``pw.record``, which is the same thing for scripts. Nothing is kept in ``Out``.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import shlex
from typing import Any, NoReturn

from IPython.core.error import UsageError as IPythonUsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.display import display

from pathways_nb import client, current
from pathways_nb.attach import attach, reset

VIEWS = ("graph", "timeline")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        options = ", ".join(option for action in self._actions for option in action.option_strings[-1:])
        raise IPythonUsageError(
            f"{self.prog}: {message}. Options: {options}.\nUsage: {self.format_usage()[7:].strip()}"
        )


def _views(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in (*VIEWS, "none")]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no view; choose from {', '.join(VIEWS)} or none")
    return tuple(name for name in names if name != "none")


def _cell_parser() -> _Parser:
    parser = _Parser(prog="%%pathways", add_help=False, allow_abbrev=False)
    parser.add_argument("--show", type=_views, default=VIEWS, metavar="graph,timeline")
    parser.add_argument("--run", default="", metavar="NAME")
    return parser


def _line_parser() -> _Parser:
    parser = _Parser(prog="%pathways", add_help=False, allow_abbrev=False)
    actions = parser.add_subparsers(dest="action", parser_class=_Parser, metavar="attach|status|reset")
    attaching = actions.add_parser("attach", prog="%pathways attach", add_help=False, allow_abbrev=False)
    attaching.add_argument("kind", nargs="?", default="auto")
    attaching.add_argument("--islands", type=int)
    attaching.add_argument("--devices-per-island", type=int)
    attaching.add_argument("--dispatch", default="parallel")
    attaching.add_argument("--no-pin", dest="pin", action="store_false")
    actions.add_parser("status", prog="%pathways status", add_help=False)
    actions.add_parser("reset", prog="%pathways reset", add_help=False)
    return parser


@magics_class
class PathwaysMagics(Magics):
    """``%%pathways`` records and shows a cell; ``%pathways`` attaches, resets and tells the status."""

    shell: Any

    @no_var_expand
    @cell_magic
    def pathways(self, line: str, cell: str) -> None:
        """Run the cell as ordinary Python, recorded and shown live: ``%%pathways [--show VIEWS] [--run NAME]``."""
        __tracebackhide__ = True
        options = _cell_parser().parse_args(_split(line))
        body, last, silent = self._compile(cell)
        number = len(self.shell.history_manager.input_hist_parsed) - 1
        with client.record(name=options.run or f"cell {number}", show=options.show):
            exec(body, self.shell.user_ns)
            value = eval(last, self.shell.user_ns) if last is not None else None
        if value is not None and not silent:
            display(value)  # not returned, or Out would hold the future and its memory

    @line_magic("pathways")  # type: ignore[arg-type]
    def pathways_line(self, line: str) -> None:
        """``%pathways attach [KIND] [--islands N] …``, ``%pathways status``, ``%pathways reset``."""
        options = vars(_line_parser().parse_args(_split(line) or ["status"]))
        action = options.pop("action")
        if action == "attach":
            print(attach(options.pop("kind"), **options))
        elif action == "reset":
            reset()
        else:
            controller = current.get()
            display({"text/plain": controller.status(), "text/html": controller._repr_html_()}, raw=True)

    def _compile(self, cell: str) -> tuple[Any, Any, bool]:
        shell = self.shell
        blank = len(list(itertools.takewhile(lambda row: not row.strip(), cell.splitlines())))  # would be dropped
        source = "\n" * (1 + blank) + shell.transform_cell(cell)  # the magic's own line counts as well
        number = len(shell.history_manager.input_hist_parsed) - 1
        filename = shell.compile.cache(source, number, raw_code=cell)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = shell.compile.ast_parse(source, filename=filename)
        tree = shell.transform_ast(tree)
        if compile(tree, filename, "exec", flags | shell.compile.flags, dont_inherit=True).co_flags & 0x80:
            raise IPythonUsageError(
                "%%pathways: top-level await is not possible in a recorded cell. Write y.result() instead of await y, "
                "or await in a cell without the magic."
            )
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = compile(ast.Expression(tree.body.pop().value), filename, "eval", shell.compile.flags, True)
        body = compile(tree, filename, "exec", shell.compile.flags, True)
        return body, last, cell.rstrip().endswith(";")


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise IPythonUsageError(f"%pathways: {error} in {line!r}") from None


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext pathways_nb`` calls: registers the magics; the first need attaches a default."""
    current.allow_default(attach)
    shell.register_magics(PathwaysMagics)
