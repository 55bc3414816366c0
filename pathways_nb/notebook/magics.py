"""``%%pathways`` and ``%pathways``: parse options and call what scripts call.

The body of a cell is compiled under the cell's own name, so that tracebacks point at the right line, and runs in the
user's namespace inside ``pw.record``. A nested ``run_cell`` would number lines off by one and report success for a cell
that failed, so that "run all" would continue. Options are parsed by ``argparse``; no option text is evaluated. The
value of the last line is displayed, not returned: ``Out`` would keep the future, and with it memory on devices.
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

from pathways_nb.adopt.called_steps import HERE, CalledSteps, called
from pathways_nb.adopt.devices_here import attach_listed
from pathways_nb.adopt.step_check import sizes_in
from pathways_nb.attach.attach import attach, reset
from pathways_nb.calibration.calibrate import calibrate
from pathways_nb.controller.policies import POLICIES
from pathways_nb.errors import UsageError, did_you_mean
from pathways_nb.notebook.adopted_cells import say, show_steps
from pathways_nb.plan.graph import Graph
from pathways_nb.results.opened_runs import runs, show_graph
from pathways_nb.session import default_controller, interrupted
from pathways_nb.session.calls import client
from pathways_nb.session.status import as_html, status_of
from pathways_nb.session.tenant_scope import tenant


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports errors as IPython does: the error, then all options in one line."""

    def __init__(self, prog: str):
        """Make a parser for the magic ``prog``; ``parse`` handles ``--help``, because argparse's own would exit."""
        # No abbreviations: an option that is added later must not change what a stored notebook means.
        super().__init__(prog=prog, add_help=False, allow_abbrev=False)

    def option(self, name: str, **how: Any) -> None:
        """Add an option that may be written with ``-`` or ``_`` between its words.

        Args:
            name: the option, without leading dashes.
            **how: as for ``add_argument``.
        """
        self.add_argument(*dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}")), **how)

    def error(self, message: str) -> NoReturn:
        """Raise the error that IPython shows without a traceback.

        Args:
            message: argparse's text.

        Raises:
            IPythonUsageError: always.
        """
        end = "" if message.endswith((".", "?")) else "."
        raise IPythonUsageError(f"{self.prog}: {message}{end}\n{self.usage_text()}")

    def usage_text(self) -> str:
        """Return all options in one line."""
        return "Usage: " + " ".join(self.format_usage().split()[1:])

    def help_text(self) -> str:
        """Return all options in one line, then a line for each option that has a description."""
        said = [action for action in self._actions if action.help]
        rows = [(" ".join(filter(None, (*one.option_strings[:1], str(one.metavar or "")))), one.help) for one in said]
        return "\n".join([self.usage_text(), *(f"  {name:30} {text}" for name, text in rows)])

    def parse(self, words: list[str]) -> argparse.Namespace | None:
        """Return the options in a line, split into ``words``.

        Returns:
            The options; ``None`` if only help was asked for, which is printed.

        Raises:
            IPythonUsageError: an option is unknown or its value is wrong; the nearest one is named.
        """
        if "--help" in words or "-h" in words:
            print(self.help_text())
            return None
        # Unknown options come back, so that the error can name the nearest one.
        options, unknown = self.parse_known_args(words)
        if unknown:
            known = [name for action in self._actions for name in action.option_strings[:1]]
            written, keyword, value = unknown[0].lstrip("-").partition("=")
            written = written.replace("_", "-")
            meant = did_you_mean(written, known) if keyword or unknown[0].startswith("-") else ""
            # A common slip: ``islands=2``, as in Python, in place of ``--islands 2``.
            meant = f" Write --{written} {value}." if keyword and f"--{written}" in known else meant
            self.error(f"unrecognized arguments: {' '.join(unknown)}.{meant}")
        return options


def _views(text: str) -> tuple[str, ...]:
    """Return the names of views in ``text``; a wrong one is an error of its option."""
    from pathways_widgets.figures.panel import check_show

    try:
        return check_show(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _cell_parser() -> _Parser:
    """Return the parser of ``%%pathways``."""
    parser = _Parser("%%pathways")
    parser.add_argument("--show", type=_views, metavar="graph,timeline")
    parser.add_argument("--run", default="", metavar="NAME")
    parser.add_argument("--client", default="", metavar="NAME")
    parser.add_argument("--profile", dest="begin", action="store_const", const=client.profile, default=client.record)
    parser.add_argument(
        "--adopt", nargs="?", const=HERE, metavar="CHIP", help="jitted calls, for a chip or the devices here"
    )
    parser.add_argument("--mesh", type=_mesh, metavar="data=16,model=8", help="with --adopt: devices along each axis")
    parser.add_argument("--options", metavar="PRESET", help="with --adopt: compiler options, by the name of a preset")
    return parser


def _mesh(text: str) -> dict[str, int]:
    """Return the sizes in ``data=16,model=8``; a wrong text is an error of its option."""
    try:
        return sizes_in(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _attach_parser() -> _Parser:
    """Return the parser of ``%pathways attach``."""
    parser = _Parser("%pathways attach")
    parser.add_argument(
        "kind", nargs="?", default="auto", metavar="KIND", help="auto, cpu, gpu, tpu, sim or sim:CHIP:4x8"
    )
    parser.option("islands", type=int, metavar="N", help="number of islands")
    parser.option("devices-per-island", type=int, metavar="N", help="devices of each island")
    parser.option("dispatch", default="parallel", metavar="parallel|sequential", help="how nodes are dispatched")
    parser.option("dcn-latency", type=float, default=0.0, metavar="SECONDS", help="delay of each controller message")
    parser.option("no-pin", dest="pin", action="store_false", help="CPU islands share all cores")
    parser.option("policy", default="stride", metavar="|".join(POLICIES), help="whose next gang is enqueued first")
    parser.option("hbm", type=float, metavar="BYTES", help="memory of each device")
    _add_simulated(parser)
    return parser


def _add_simulated(parser: _Parser) -> None:
    """Add the options that only simulated devices have."""
    parser.option("chip", metavar="NAME", help="simulated: tpu_v5p, a file, or here for this machine as calibrated")
    parser.option("network", metavar="NAME", help="simulated: network between islands, a name or a file")
    parser.option(
        "devices-per-host", type=int, metavar="N", help="simulated, and on a Ray cluster: how many share a host"
    )
    parser.option("address", metavar="HOST:PORT", help="of a running Ray cluster; one is made here if left out")
    parser.option("name", metavar="NAME", help="of a controller on a Ray cluster that several notebooks share")
    parser.option(
        "transfers", choices=("device", "ray"), help="on a Ray cluster: from device to device, or by Ray's object store"
    )
    parser.option(
        "unresponsive-after",
        type=float,
        metavar="S",
        help="on a Ray cluster: seconds after which a silent host is dead",
    )
    parser.option("topology", type=_shape, metavar="4x4x4", help="simulated: chips of an island along each axis")
    parser.option("host", type=_costs, metavar="launch=1e-4,…", help="simulated: seconds of the controller and hosts")
    parser.option("noise", type=float, default=0.0, metavar="SIGMA", help="simulated: spread of the log of durations")
    parser.option("seed", type=int, default=0, metavar="N", help="simulated: seed of that noise")
    parser.option("values", action="store_true", help="simulated: compute values on CPU devices, too")
    parser.option("compiler", default="auto", choices=("auto", "own", "cpu"), help="simulated: whose compiler")


def _costs(text: str) -> dict[str, float]:
    """Return the seconds in ``launch=1e-4,call=2e-5`` by name."""
    try:
        return {name.strip(): float(seconds) for name, seconds in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write seconds by name, such as launch=1e-4,call=2e-5") from None


def _shape(text: str) -> tuple[int, ...]:
    """Return the sizes in ``4x4x4`` or ``4,4,4`` as a tuple of numbers."""
    try:
        return tuple(map(int, text.replace(",", "x").split("x")))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: write how many chips there are along each axis, such as 4x4"
        ) from None


def _steps(options: argparse.Namespace) -> CalledSteps | None:
    """Return what adopts the calls of a cell; None if that is not asked for.

    Raises:
        IPythonUsageError: an option for it is given without it, or no chip or options have this name.
    """
    if options.adopt is None:
        if options.mesh or options.options:
            raise IPythonUsageError("%%pathways: --mesh and --options are for --adopt CHIP.")
        return None
    attach_listed()
    try:
        return CalledSteps(options.adopt, options.mesh, options.options)
    except UsageError as error:  # of the option's word, not of a line of code
        raise IPythonUsageError(f"%%pathways --adopt: {error}") from None


_ACTIONS = ("attach", "calibrate", "status", "reset")


def _action(text: str) -> str:
    """Return the word after ``%pathways`` if it is an action; the error names the nearest one."""
    if text not in _ACTIONS:
        said = f"invalid choice: {text!r}, choose from {', '.join(_ACTIONS)}.{did_you_mean(text, _ACTIONS)}"
        raise argparse.ArgumentTypeError(said)
    return text


@magics_class
class PathwaysMagics(Magics):
    """The magics: ``%%pathways`` records and shows a cell; ``%pathways`` attaches, calibrates and resets."""

    shell: Any

    @no_var_expand
    @cell_magic
    def pathways(self, line: str, cell: str) -> None:
        """Run the cell as ordinary Python, recorded and shown live.

        ``%%pathways [--show VIEWS] [--run NAME] [--client NAME] [--profile] [--adopt [CHIP] [--mesh AXES]
        [--options PRESET]]``

        With ``--adopt``, each outermost jitted function of the user's that the cell calls is adopted for a chip and
        shown below: its seconds, its collectives by line, its operations and memory.

        Args:
            line: the options.
            cell: the body.
        """
        __tracebackhide__ = True
        options = _cell_parser().parse(_split(line))
        if options is None:
            return
        steps = _steps(options)
        body, last, silent = self._compile(cell)
        number = len(self.shell.history_manager.input_hist_parsed) - 1
        # Without a name the cell acts for the client that the notebook has anyway.
        whose = tenant(options.client).acting() if options.client else contextlib.nullcontext()
        # Steps for another chip have pictures of their own.
        views = options.show or ("" if options.adopt not in (None, HERE) else "graph,timeline")
        with whose, options.begin(name=options.run or f"cell {number}", show=views, source=cell) as run:
            # Known by its name while the cell runs, so that the cell itself can read it.
            if options.run:
                runs[options.run] = run
            with called(run, steps) if steps is not None else contextlib.nullcontext():
                exec(body, self.shell.user_ns)
                value = eval(last, self.shell.user_ns) if last is not None else None
        if steps is not None:
            show_steps(steps, run)
        elif not len(run.events) and "pw" not in body.co_names:
            say("Nothing in this cell went through the controller. %%pathways --adopt shows what jitted functions do.")
        if value is not None and not silent:
            display(value)  # not returned: Out would keep the future and its memory

    @line_magic("pathways")  # type: ignore[arg-type]
    def pathways_line(self, line: str) -> None:
        """Run ``%pathways attach [KIND] [--islands N] …``, ``calibrate [--quick]``, ``status`` or ``reset``.

        Args:
            line: the action and its options; empty means ``status``.
        """
        words = _split(line)
        if words[:1] == ["attach"]:
            options = _attach_parser().parse(words[1:])
            if options is not None:
                # The names of the options are those of the arguments: one place says what can be attached.
                print(attach(**vars(options)))
            return
        if words[:1] == ["calibrate"]:
            parser = _Parser("%pathways calibrate")
            parser.add_argument("--quick", action="store_true")
            options = parser.parse(words[1:])
            if options is not None:
                display(calibrate(quick=options.quick))
            return
        parser = _Parser("%pathways")
        parser.add_argument("action", nargs="?", default="status", type=_action, choices=_ACTIONS)
        chosen = parser.parse(words)
        if chosen is None:
            return
        if chosen.action == "reset":
            reset()
        else:
            status = status_of(default_controller.get())
            display({"text/plain": status, "text/html": as_html(status)}, raw=True)

    def _compile(self, cell: str) -> tuple[Any, Any, bool]:
        """Compile a cell under its own name, the last expression apart from the statements before it.

        Args:
            cell: the body, without the line of the magic.

        Returns:
            The statements, the last expression or ``None``, and whether the cell ends in ``;``, which silences it.

        Raises:
            IPythonUsageError: the cell contains a top-level ``await``, which a recorded cell cannot run.
        """
        shell = self.shell
        blank = len(list(itertools.takewhile(lambda row: not row.strip(), cell.splitlines())))  # else dropped
        source = "\n" * (1 + blank) + shell.transform_cell(cell)  # one more for the line of the magic
        number = len(shell.history_manager.input_hist_parsed) - 1
        # Under the cell's number, so that a traceback shows its lines.
        filename = shell.compile.cache(source, number, raw_code=cell)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = shell.compile.ast_parse(source, filename=filename)
        # Transformers of other extensions apply, as in any cell.
        tree = shell.transform_ast(tree)
        # 0x80 is CO_COROUTINE, which the code has only if something at its top level awaits.
        if compile(tree, filename, "exec", flags | shell.compile.flags, dont_inherit=True).co_flags & 0x80:
            raise IPythonUsageError(
                "%%pathways: top-level await is not possible in a recorded cell. Write y.result() instead of await y, "
                "or await in a cell without the magic."
            )
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            # Apart, because only an expression has a value to display.
            last = compile(ast.Expression(tree.body.pop().value), filename, "eval", shell.compile.flags, True)
        body = compile(tree, filename, "exec", shell.compile.flags, True)
        return body, last, cell.rstrip().endswith(";")


def _split(line: str) -> list[str]:
    """Return the words of a line, split as a shell does.

    Raises:
        IPythonUsageError: a quotation is not closed.
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        raise IPythonUsageError(f"%pathways: {error} in {line!r}") from None


def load_ipython_extension(shell: Any) -> None:
    """Register magics and the display of graphs; ``%load_ext pathways_nb`` calls this.

    From then on the first use of devices attaches default ones, so that a first cell works without ``pw.attach``.
    """
    default_controller.allow_default(attach)
    interrupted.watch_cells()
    shell.register_magics(PathwaysMagics)
    # For the type, because graphs are plain data and import no display.
    shell.display_formatter.ipython_display_formatter.for_type(Graph, show_graph)
