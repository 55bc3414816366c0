"""``pw.stages``: cut a list of blocks into contiguous stages whose largest cost is least.

The cut is exact: costs are compared as whole multiples of one unit, so no sum is rounded. Of all cuts with the least
largest stage, the one with the least sum of squares is taken (its other stages are the most even), and of those the
lexicographically first: each stage, from the first on, as short as possible.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, overload

import jax

from pathways_nb.errors import UsageError, is_index, is_number, three_digits
from pathways_nb.parallel import block_costs
from pathways_nb.parallel.block_costs import Block, Hardware, describe_block
from pathways_nb.parallel.pipelines.stage_calls import as_call, parameters
from pathways_nb.trace.metrics import duration
from pathways_nb.util.text_table import Printed, Table
from pathways_nb.util.words import a_type_of, counted


@dataclass(frozen=True, repr=False)
class Stages(Printed, Sequence[Block]):
    """A model cut into stages: a sequence of functions ``(params, x) -> y``; ``params`` lists a tree for each block.

    Attributes:
        blocks: the functions that were cut, in order.
        cuts: for each stage the numbers of its blocks.
        block_costs: of each block.
        basis: how the costs were found.
        unit: of the costs: ``"s"`` for seconds, else empty.
    """

    blocks: tuple[Block, ...]
    cuts: tuple[range, ...]
    block_costs: tuple[float, ...]
    basis: str
    unit: str = ""

    def __len__(self) -> int:
        return len(self.cuts)

    @overload
    def __getitem__(self, index: int) -> Block: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Block, ...]: ...

    def __getitem__(self, index: int | slice) -> Block | tuple[Block, ...]:
        return self._functions[index]

    @property
    def costs(self) -> tuple[float, ...]:
        """The cost of each stage."""
        return tuple(math.fsum(self.block_costs[number] for number in cut) for cut in self.cuts)

    @property
    def largest(self) -> float:
        """The cost of the most expensive stage, for which a pipeline's others wait."""
        return max(self.costs)

    @cached_property
    def equal(self) -> Stages:
        """The same blocks cut into stages of equal numbers, as far as they divide; the first ones have one more."""
        each, more = divmod(len(self.blocks), len(self.cuts))
        ends = accumulate((each + (number < more) for number in range(len(self.cuts))), initial=0)
        return replace(self, cuts=tuple(range(*ends) for ends in pairwise(ends)))

    def split(self, block_params: Sequence[Any]) -> list[list[Any]]:
        """Return the parameters of each stage: a list of the trees of its blocks.

        Args:
            block_params: a tree for each block.

        Raises:
            UsageError: there are more or fewer trees than blocks.
        """
        _check_count(block_params, len(self.blocks), "split(block_params)", "blocks", "tree")
        return [[block_params[number] for number in cut] for cut in self.cuts]

    def join(self, stage_params: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the parameters of each block, as they were before ``split``.

        Args:
            stage_params: for each stage a list of trees.

        Raises:
            UsageError: there are more or fewer trees than blocks.
        """
        _check_count(stage_params, len(self), "join(stage_params)", "stages", "list")
        for cut, trees in zip(self.cuts, stage_params, strict=True):
            _check_count(trees, len(cut), f"join(stage_params): the stage of {_words(cut)}", "blocks", "tree")
        return [tree for trees in stage_params for tree in trees]

    @cached_property
    def _functions(self) -> tuple[Block, ...]:
        """The stages, made once, so that each keeps what JAX has compiled for it."""
        return tuple(_stage(self.blocks[cut.start : cut.stop], _words(cut)) for cut in self.cuts)

    def _table(self) -> Table:
        other, ratio = self.equal, self.equal.largest / self.largest if self.largest else 1.0
        title = (
            f"{counted(len(self.blocks), 'block')} in {counted(len(self), 'stage')}; {self.basis}. "
            f"Largest stage: {self._cost_text(self.largest)}; of equal counts: {self._cost_text(other.largest)}, "
            f"{three_digits(ratio)} times as much."
        )
        both = zip(self.cuts, self.costs, other.cuts, other.costs, strict=True)
        rows = [
            (str(number), _words(cut), self._cost_text(cost), _words(equal), self._cost_text(even))
            for number, (cut, cost, equal, even) in enumerate(both)
        ]
        return Table(title, ("stage", "blocks", "cost", "of equal counts", "cost"), rows)

    def _cost_text(self, cost: float) -> str:
        """Return a cost in words."""
        return duration(cost) if self.unit else f"{cost:.4g}"


def stages(
    blocks: Sequence[Block],
    count: int,
    cost: str | Sequence[float] | None = None,
    *,
    params: Sequence[Any] | None = None,
    x: Any = None,
    chip: Hardware = "tpu_v3",
) -> Stages:
    """Cut a list of blocks into contiguous stages so that the largest stage cost is least; exactly.

    Of several such cuts it takes the one with the least sum of squared costs, then the lexicographically first.

    Args:
        blocks: functions ``(params, x) -> y`` in order, with ``key`` and ``context`` as in ``pw.pipeline``; one
            function may occur many times.
        count: number of stages.
        cost: a number for each block; ``"estimated"``, from the jaxpr of its forward and backward pass on ``chip``; or
            ``"measured"``, timed on the first accelerator that is attached, else on JAX's default device, with progress
            after two seconds. Left out: estimated if ``params`` and ``x`` are given, else equal for all blocks.
        params: a tree of arrays or ``jax.ShapeDtypeStruct`` for each block.
        x: input of the first block, likewise.
        chip: for estimates: a name, a ``pw.chip``, or ``pw.calibration()`` for this machine's own rates.

    Returns:
        The stages, for ``pw.pipeline``; ``.split(params)`` gives their parameters.

    Raises:
        UsageError: fewer blocks than stages, blocks whose shapes do not join, or costs that are not one number of at
            least 0 for each block.
    """
    listed = _checked(blocks, count)
    if (params is None) != (x is None):
        raise UsageError("stages(…): pass both params= (a tree for each block) and x= (input of the first), or none.")
    calls = None
    if params is not None:
        _check_count(params, len(listed), "stages(params=…)", "blocks", "tree")
        calls = block_costs.block_calls(listed, params, x)
    costs, basis, unit = _costs(listed, cost, calls, chip)
    return Stages(listed, cut(costs, count), tuple(costs), basis, unit)


def cut(costs: Sequence[float], count: int) -> tuple[range, ...]:
    """Return the contiguous ranges, none empty, whose largest sum is least; ties as the module says.

    Args:
        costs: numbers of at least 0.
        count: of ranges, at most as many as there are costs.
    """
    # A float is a fraction of a power of 2, so all costs are whole multiples of one unit, and sums are never rounded:
    # equal cuts compare equal, whatever the order in which their costs were added.
    exact = [Fraction(cost) for cost in costs]
    unit = math.lcm(*(cost.denominator for cost in exact))
    sums = list(accumulate((int(cost * unit) for cost in exact), initial=0))
    # First the least largest stage; then, among the cuts that keep to it, the least sum of squares.
    limit = _least(sums, count, lambda one, rest: max(one, rest), None)[0][0]
    rest, ends = _least(sums, count, lambda one, rest: one * one + rest, limit)[1], [0]
    for left in range(count, 0, -1):
        ends.append(rest[left][ends[-1]])
    return tuple(range(*both) for both in pairwise(ends))


def _least(
    sums: Sequence[int], count: int, join: Callable[[int, int], int], limit: int | None
) -> tuple[list[int], list[list[int]]]:
    """Return the least value of the blocks from each one on in ``count`` ranges, and where the first of them ends.

    Args:
        sums: cost of the blocks before each one.
        count: of ranges.
        join: value of a range's cost and the value of the ranges after it; grows with both.
        limit: largest cost of a range; ``None`` for no limit.

    Returns:
        The values by the first block, and by number of ranges and first block the end of the first range; of several
        ends with the least value the first.
    """
    # By dynamic programming from the last range to the first: the value of the blocks from ``start`` on, in one range
    # more than before, is the least over the end of its first range.
    blocks = len(sums) - 1
    never = 1 + sums[-1] ** 2
    values, ends = [never] * blocks + [0], [[blocks] * (blocks + 1)]  # (blocks + 1,), (ranges + 1, blocks + 1)
    for _ in range(count):
        now, where = [never] * (blocks + 1), [blocks] * (blocks + 1)
        for start in range(blocks):
            for end in range(start + 1, blocks + 1):
                first = sums[end] - sums[start]
                if (limit is not None and first > limit) or join(first, 0) > now[start]:
                    break  # a longer range costs no less
                if values[end] < never and (value := join(first, values[end])) < now[start]:
                    now[start], where[start] = value, end
        values = now
        ends.append(where)
    return values, ends


def _checked(blocks: Sequence[Block], count: int) -> tuple[Block, ...]:
    """Return the blocks, if they are functions and enough for so many stages.

    Raises:
        UsageError: they are not.
    """
    listed = tuple(blocks)
    for number, block in enumerate(listed):
        if not callable(block):
            raise UsageError(f"stages(…): block {number} is {a_type_of(block)}, not a function (params, x) -> y.")
    if not is_index(count) or count < 1:
        raise UsageError(f"stages(…, count={count!r}): pass a whole number of stages, at least 1.")
    if len(listed) < count:
        raise UsageError(
            f"stages(…): {counted(len(listed), 'block')} cannot fill {counted(count, 'stage')}. Pass at most "
            f"count={len(listed)}, or cut the model into more blocks."
        )
    return listed


def _costs(
    blocks: Sequence[Block],
    cost: str | Sequence[float] | None,
    calls: Sequence[block_costs.BlockCall] | None,
    chip: Hardware,
) -> tuple[list[float], str, str]:
    """Return the cost of each block, how the costs were found, and their unit."""
    if cost is None and calls is None:
        return [1.0] * len(blocks), "every block counts 1", ""
    if cost is not None and not isinstance(cost, str):
        return _given(blocks, cost), "costs as given", ""
    if cost not in (None, "estimated", "measured"):
        raise UsageError(f"stages(…, cost={cost!r}): choose 'estimated', 'measured', or pass a number for each block.")
    if calls is None:
        raise UsageError(
            f"stages(…, cost={cost!r}) needs params= (a tree for each block) and x= (the first block's input)."
        )
    found = block_costs.measured(calls) if cost == "measured" else block_costs.estimated(calls, chip)
    return *found, "s"


def _given(blocks: Sequence[Block], cost: Sequence[float]) -> list[float]:
    """Return costs that the user gave.

    Raises:
        UsageError: they are not one number of at least 0 for each block.
    """
    listed = list(cost)
    _check_count(listed, len(blocks), "stages(cost=…)", "blocks", "number")
    for number, one in enumerate(listed):
        if not is_number(one) or one < 0:
            raise UsageError(
                f"stages(cost=…): the cost of {describe_block(blocks, number)} is {one!r}. Pass a finite number, at "
                f"least 0."
            )
    return [float(one) for one in listed]


def _check_count(given: Sequence[Any], wanted: int, what: str, of: str, each: str) -> None:
    """Refuse a list that has not one entry for each block or stage."""
    if len(given) != wanted:
        raise UsageError(f"{what}: {counted(len(given), each)} for {wanted} {of}. Pass one for each.")


def _stage(blocks: Sequence[Block], name: str) -> Block:
    """Return the function of a stage; it has the parameters ``key`` and ``context`` if one of its blocks has them."""
    calls = [as_call(block) for block in blocks]

    def stage(params: Sequence[Any], x: Any, key: Any = None, context: Any = None) -> Any:
        _check_count(params, len(blocks), f"the stage of {name}", "blocks", "tree")
        for number, (call, own) in enumerate(zip(calls, params, strict=True)):
            x = call(own, x, None if key is None else jax.random.fold_in(key, number), context)
        return x

    stage.__name__ = stage.__qualname__ = name
    stage.__signature__ = _signature(blocks)  # type: ignore[attr-defined]
    return stage


def _signature(blocks: Sequence[Block]) -> inspect.Signature:
    """Return the parameters of a stage of these blocks."""
    found = {name: inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("params", "x")}
    for wanted in map(parameters, blocks):
        for name in ("key", "context"):
            # Of several blocks, one without a default decides: the stage cannot be called without it.
            if name in wanted and (name not in found or wanted[name].default is inspect.Parameter.empty):
                found[name] = wanted[name].replace(kind=inspect.Parameter.KEYWORD_ONLY)
    return inspect.Signature(list(found.values()))


def _words(cut: range) -> str:
    """Return the blocks of a stage in words: ``block 2`` or ``blocks 0–3``."""
    return f"block {cut.start}" if len(cut) == 1 else f"blocks {cut.start}–{cut.stop - 1}"
