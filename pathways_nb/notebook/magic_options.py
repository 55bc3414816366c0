"""The options of ``%%pathways`` and ``%pathways``, parsed by ``argparse``: no option text is evaluated."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

from IPython.core.error import UsageError as IPythonUsageError

from pathways_nb.adopt.called_steps import HERE
from pathways_nb.adopt.step_check import sizes_in
from pathways_nb.controller.policies import POLICIES
from pathways_nb.errors import UsageError, did_you_mean
from pathways_nb.session.calls import client


class MagicParser(argparse.ArgumentParser):
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


def cell_parser() -> MagicParser:
    """Return the parser of ``%%pathways``."""
    parser = MagicParser("%%pathways")
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


def attach_parser() -> MagicParser:
    """Return the parser of ``%pathways attach``."""
    parser = MagicParser("%pathways attach")
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


def _add_simulated(parser: MagicParser) -> None:
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


_ACTIONS = ("attach", "calibrate", "status", "reset")


def _action(text: str) -> str:
    """Return the word after ``%pathways`` if it is an action; the error names the nearest one."""
    if text not in _ACTIONS:
        said = f"invalid choice: {text!r}, choose from {', '.join(_ACTIONS)}.{did_you_mean(text, _ACTIONS)}"
        raise argparse.ArgumentTypeError(said)
    return text


def line_parser() -> MagicParser:
    """Return the parser of ``%pathways`` without options."""
    parser = MagicParser("%pathways")
    parser.add_argument("action", nargs="?", default="status", type=_action, choices=_ACTIONS)
    return parser


def calibrate_parser() -> MagicParser:
    """Return the parser of ``%pathways calibrate``."""
    parser = MagicParser("%pathways calibrate")
    parser.add_argument("--quick", action="store_true")
    return parser


def split_words(line: str) -> list[str]:
    """Return the words of a line, split as a shell does.

    Raises:
        IPythonUsageError: a quotation is not closed.
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        raise IPythonUsageError(f"%pathways: {error} in {line!r}") from None
