"""The notebook's door: ``%%pathways`` and ``%pathways``. They parse options and do nothing else.

The body of a cell is compiled under the cell's own name, so tracebacks point at the right line, and runs in the
user's namespace inside ``pw.record``, which is the same thing for scripts. Nothing is kept in ``Out``.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import itertools
import shlex
from typing import Any, NoReturn

from IPython.core.error import UsageError as IPythonUsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.display import display

from pathways_nb import calls, current
from pathways_nb.attach import attach, reset
from pathways_nb.calibrate import calibrate
from pathways_nb.controller.policies import POLICIES
from pathways_nb.program.graph import Graph
from pathways_nb.run import runs, show_graph
from pathways_nb.tenants import tenant


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are a notebook's: what is wrong, and which options there are."""

    def __init__(self, prog: str):
        super().__init__(prog=prog, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise IPythonUsageError(f"{self.prog}: {message}.\n{self.help_text()}")

    def help_text(self) -> str:
        """Its options in a line."""
        return "Usage: " + " ".join(self.format_usage().split()[1:])

    def parse(self, words: list[str]) -> argparse.Namespace | None:
        """The options; ``None`` if only help was wanted, which is printed."""
        if "--help" in words or "-h" in words:
            print(self.help_text())
            return None
        return self.parse_args(words)


def _views(text: str) -> tuple[str, ...]:
    from pathways_widgets.panel import check_show

    try:
        return check_show(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _cell_parser() -> _Parser:
    parser = _Parser("%%pathways")
    parser.add_argument("--show", type=_views, default="graph,timeline", metavar="graph,timeline")
    parser.add_argument("--run", default="", metavar="NAME")
    parser.add_argument("--client", default="", metavar="NAME")
    parser.add_argument("--profile", dest="begin", action="store_const", const=calls.profile, default=calls.record)
    return parser


def _attach_parser() -> _Parser:
    parser = _Parser("%pathways attach")
    parser.add_argument("kind", nargs="?", default="auto")
    parser.add_argument("--islands", type=int, metavar="N")
    parser.add_argument("--devices-per-island", "--devices_per_island", type=int, metavar="N")
    parser.add_argument("--dispatch", default="parallel", metavar="parallel|sequential")
    parser.add_argument("--dcn-latency", "--dcn_latency", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--no-pin", dest="pin", action="store_false")
    parser.add_argument("--policy", default="stride", metavar="|".join(POLICIES))
    parser.add_argument("--hbm", type=float, metavar="BYTES")
    return parser


def _action_parser() -> _Parser:
    parser = _Parser("%pathways")
    parser.add_argument("action", nargs="?", default="status", choices=("attach", "calibrate", "status", "reset"))
    return parser


def _calibrate_parser() -> _Parser:
    parser = _Parser("%pathways calibrate")
    parser.add_argument("--quick", action="store_true")
    return parser


@magics_class
class PathwaysMagics(Magics):
    """``%%pathways`` records and shows a cell; ``%pathways`` attaches, calibrates, resets and tells the status."""

    shell: Any

    @no_var_expand
    @cell_magic
    def pathways(self, line: str, cell: str) -> None:
        """Run the cell as ordinary Python, recorded and shown live.

        ``%%pathways [--show VIEWS] [--run NAME] [--client NAME] [--profile]``
        """
        __tracebackhide__ = True
        options = _cell_parser().parse(_split(line))
        if options is None:
            return
        body, last, silent = self._compile(cell)
        number = len(self.shell.history_manager.input_hist_parsed) - 1
        whose = tenant(options.client).acting() if options.client else contextlib.nullcontext()
        with whose, options.begin(name=options.run or f"cell {number}", show=options.show, source=cell) as run:
            if options.run:
                runs[options.run] = run
            exec(body, self.shell.user_ns)
            value = eval(last, self.shell.user_ns) if last is not None else None
        if value is not None and not silent:
            display(value)  # not returned, or Out would hold the future and its memory

    @line_magic("pathways")  # type: ignore[arg-type]
    def pathways_line(self, line: str) -> None:
        """``%pathways attach [KIND] [--islands N] …``, ``calibrate [--quick]``, ``status``, ``reset``."""
        words = _split(line)
        if words[:1] == ["attach"]:
            options = _attach_parser().parse(words[1:])
            if options is not None:
                print(attach(**vars(options)))
            return
        if words[:1] == ["calibrate"]:
            options = _calibrate_parser().parse(words[1:])
            if options is not None:
                display(calibrate(quick=options.quick))
            return
        chosen = _action_parser().parse(words)
        if chosen is None:
            return
        if chosen.action == "reset":
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
    """What ``%load_ext pathways_nb`` calls: magics, pictures of graphs; the first need attaches a default."""
    current.allow_default(attach)
    shell.register_magics(PathwaysMagics)
    shell.display_formatter.ipython_display_formatter.for_type(Graph, show_graph)
