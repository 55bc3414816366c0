"""A program compiled by the compiler of a chip: whole, or, where it repeats blocks, a few of them at several depths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from pathways_nb.compilers import compiling, lowered
from pathways_nb.compilers.compiling import CompiledText
from pathways_nb.compilers.targets import CompilerTarget
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hlo.buffers import buffers_in, live_ranges_in
from pathways_nb.cost.launch.constants import LaunchConstants
from pathways_nb.cost.launch.deeper_launch import deeper
from pathways_nb.cost.launch.op_seconds import LaunchPlace
from pathways_nb.cost.launch.opened_launch import OpenedLaunch, open_launch
from pathways_nb.errors import CancelledError
from pathways_nb.program.shortened import shortened
from pathways_nb.util.waiting import Workers


class CompiledBlocks(NamedTuple):
    """A program as the compiler of a chip has compiled it: whole, or some of the blocks that it repeats.

    Args:
        texts: one of each depth.
        depths: blocks of each, ascending; 1 for a whole program.
        blocks: of the program.
        results: positions, among the program's results, of those that the deepest has.
    """

    texts: tuple[CompiledText, ...]
    depths: tuple[int, ...]
    blocks: int
    results: tuple[int, ...]

    def place(self, chip: Chip, hosts: Sequence[int], per_host: int) -> LaunchPlace:
        """Return the devices as they lie: of a TPU by the compiler's coordinates, of GPUs by their hosts.

        Args:
            chip: of all of them.
            hosts: (devices,) number of the host of each.
            per_host: devices of a host.
        """
        torus = chip.interconnect == "torus"
        places = self.texts[-1].places if torus else tuple({"process": host} for host in hosts)
        return LaunchPlace(chip, places, per_host)

    def opened(self, place: LaunchPlace, known: LaunchConstants, trips: int | None = None) -> OpenedLaunch:
        """Return the launch from inside, of all blocks.

        Args:
            place: the devices.
            known: constants of their chip.
            trips: of loops that end by their data; None if nobody knows.
        """
        each = [
            open_launch(
                text.text, place, known,
                buffers=text.buffers, memory=text.memory, live=text.live, compiler=text.compiler, refused=text.refused,
                trips=trips,
            )
            for text in self.texts
        ]  # fmt: skip
        if len(each) == 1:
            return each[0]
        buffers = [(buffers_in(text.buffers), live_ranges_in(text.live)) for text in self.texts]
        return deeper(each, buffers, self.depths, self.blocks)


def compile_blocks(
    function: Callable[..., Any],
    arguments: Sequence[jax.ShapeDtypeStruct],
    donated: Sequence[int],
    target: CompilerTarget,
    options: Mapping[str, Any],
    say: Callable[[str], object],
    is_wanted: Callable[[], bool],
) -> CompiledBlocks:
    """Return a program compiled by the compiler of a chip; programs of different depths are compiled at once.

    Args:
        function: takes arrays one by one, and returns arrays.
        arguments: shape, type and layout of each.
        donated: positions of arguments whose memory results may take.
        target: the devices.
        options: of the compiler.
        say: is called with lines of progress.
        is_wanted: whether anybody still waits for it; the compiler is ended if not.

    Raises:
        CancelledError: nobody waits any more.
        CompilerError: the compiler does not take the program.
        UsageError: the compiler is not installed.
    """
    jaxpr = jax.make_jaxpr(function)(*arguments)
    short = shortened(jaxpr)
    if short is None:
        programs = [lowered.lower(function, arguments, donated, target.platform)]
        made = CompiledBlocks((), (1,), 1, tuple(range(len(jaxpr.out_avals))))
    else:
        programs = [
            lowered.lower(
                named(one.function, function.__name__), one.arguments_of(arguments), one.donated_of(donated),
                target.platform,
            )
            for one in short.programs
        ]  # fmt: skip
        depths = tuple(one.depth for one in short.programs)
        made = CompiledBlocks((), depths, short.blocks, short.programs[-1].results)
    return made._replace(texts=_at_once(programs, target, options, say, is_wanted))


def _at_once(
    programs: Sequence[lowered.LoweredText],
    target: CompilerTarget,
    options: Mapping[str, Any],
    say: Callable[[str], object],
    is_wanted: Callable[[], bool],
) -> tuple[CompiledText, ...]:
    """Return programs compiled at the same time; where one fails, or the wait is interrupted, the others are ended."""
    failed: list[BaseException] = []

    def compile_one(program: lowered.LoweredText) -> CompiledText:
        try:
            return compiling.compile_for(
                program, target, options, say=say, is_wanted=lambda: not failed and is_wanted()
            )
        except BaseException as error:
            failed.append(error)
            raise

    workers = Workers("pathways-depth", len(programs))
    promises = [workers.submit(compile_one, one) for one in programs]
    workers.close()
    try:
        return tuple(one.result() for one in promises)
    except CancelledError:
        # The reason is the first one's.
        raise failed[0] from None
    except KeyboardInterrupt as error:
        failed.append(error)  # which ends the compilers that run
        raise


def named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function under a name, which its compiled module has, too."""

    def called(*arrays: Any) -> Any:
        return function(*arrays)

    called.__name__ = called.__qualname__ = name
    return called
