"""``%%pathways`` and ``%pathways``: parse options and call what scripts call.

The body of a cell is compiled under the cell's own name, so that tracebacks point at the right line, and runs in the
user's namespace inside ``pw.record``. A nested ``run_cell`` would number lines off by one and report success for a cell
that failed, so that "run all" would continue. The value of the last line is displayed, not returned: ``Out`` would keep
the future, and with it memory on devices. Options are in ``magic_options``.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import itertools
from typing import Any

from IPython.core.error import UsageError as IPythonUsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.display import display

from pathways_nb.adopt.called_steps import HERE, CalledSteps, called
from pathways_nb.adopt.devices_here import attach_listed
from pathways_nb.attach.attach import attach, reset
from pathways_nb.calibration.calibrate import calibrate
from pathways_nb.errors import UsageError
from pathways_nb.notebook.adopted_cells import say, show_steps
from pathways_nb.notebook.magic_options import attach_parser, calibrate_parser, cell_parser, line_parser, split_words
from pathways_nb.plan.graph import Graph
from pathways_nb.results.opened_runs import runs, show_graph
from pathways_nb.session import default_controller, interrupted
from pathways_nb.session.status import as_html, status_of
from pathways_nb.session.tenant_scope import tenant


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
        options = cell_parser().parse(split_words(line))
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
        words = split_words(line)
        if words[:1] == ["attach"]:
            options = attach_parser().parse(words[1:])
            if options is not None:
                # The names of the options are those of the arguments: one place says what can be attached.
                print(attach(**vars(options)))
            return
        if words[:1] == ["calibrate"]:
            options = calibrate_parser().parse(words[1:])
            if options is not None:
                display(calibrate(quick=options.quick))
            return
        chosen = line_parser().parse(words)
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


def load_ipython_extension(shell: Any) -> None:
    """Register magics and the display of graphs; ``%load_ext pathways_nb`` calls this.

    From then on the first use of devices attaches default ones, so that a first cell works without ``pw.attach``.
    """
    default_controller.allow_default(attach)
    interrupted.watch_cells()
    shell.register_magics(PathwaysMagics)
    # For the type, because graphs are plain data and import no display.
    shell.display_formatter.ipython_display_formatter.for_type(Graph, show_graph)
