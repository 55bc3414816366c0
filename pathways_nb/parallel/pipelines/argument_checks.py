"""What a pipeline refuses before it is called, each with both sides and the fix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pathways_nb.errors import UsageError, did_you_mean, is_index
from pathways_nb.parallel.fsdp.modes import mode_of
from pathways_nb.parallel.pipelines.sharded_stages import STAGE_MODES
from pathways_nb.parallel.pipelines.stage_calls import parameters
from pathways_nb.parallel.schedules.schedule import Schedule
from pathways_nb.plan.function_names import function_name
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program import specs
from pathways_nb.util.words import a_type_of, counted


def sizes(
    schedule: Schedule, stages: Sequence[Any], on: Sequence[Any], microbatches: int | None, slices: Sequence[int] | None
) -> None:
    """Require that a schedule has as many stages, devices, microbatches and token slices as were given.

    Raises:
        UsageError: a number differs.
    """
    name = f"schedule {schedule.name!r}"
    if slices is None and schedule.size.token_slices > 1:
        raise UsageError(
            f"pipeline: {name} has {counted(schedule.size.token_slices, 'token slice')}, but token_slices= was not "
            "given. Give the tokens of each slice; they sum to the length of the sequences."
        )
    if schedule.copies > 1:
        raise UsageError(
            f"pipeline: {name} runs {schedule.copies} copies of the model in opposite directions; a pipeline has one "
            "copy. Take 'dualpipe-v', which does the same with one copy, or simulate it with schedule.timing()."
        )
    pairs = [("stages", schedule.stages, len(stages)), ("places in on=", schedule.size.devices, len(on))]
    if microbatches is not None:
        pairs.append(("microbatches", schedule.size.microbatches, microbatches))
    if slices is not None:
        pairs.append(("token_slices", schedule.size.token_slices, len(slices)))
    for what, has, given in pairs:
        if has != given:
            per = f" ({counted(schedule.size.devices, 'device')} with {counted(schedule.size.chunks, 'chunk')} each)"
            raise UsageError(
                f"pipeline: {name} has {has} {what.removesuffix(' in on=')}{per if what == 'stages' else ''}, but "
                f"{given} {what} were given. Give {has}, or take a schedule of that size."
            )


def lists(**given: Any) -> None:
    """Require that arguments are lists or tuples.

    Raises:
        UsageError: one is not.
    """
    for name, value in given.items():
        # A text is a ``Sequence``, too.
        if value is not None and (isinstance(value, (str, bytes)) or not isinstance(value, Sequence)):
            raise UsageError(f"pipeline: {name}= must be a list; got {a_type_of(value)}.")


def places(on: Sequence[Any]) -> None:
    """Require that every place is one.

    Raises:
        UsageError: something else is among them.
    """
    for number, place in enumerate(on):
        if not isinstance(place, VirtualSlice):
            raise UsageError(f"pipeline: on[{number}] is {a_type_of(place)}, not a place. Give a pw.virtual_slice(…).")


def shardings(given: Sequence[Any] | None, stages: int) -> None:
    """Require shardings for each stage.

    Raises:
        UsageError: there are more or fewer.
    """
    if given is not None and len(given) != stages:
        raise UsageError(
            f"pipeline: {counted(len(given), 'sharding')} were given for {counted(stages, 'stage')}. Give a tree of "
            "pw.P for each stage; pw.P() for one that is replicated."
        )


def layouts(given: Sequence[Any], data: Any, places: Sequence[VirtualSlice], on: Sequence[VirtualSlice]) -> None:
    """Require that shardings name axes of the places, each once.

    Args:
        given: the shardings of each stage.
        data: the sharding of the batch.
        places: the place of each stage.
        on: all places.

    Raises:
        ShardingError: naming the stage, the entry and the axes there are.
    """
    for stage, (tree, place) in enumerate(zip(given, places, strict=True)):
        specs.check_tree(tree, f"shardings[{stage}]", "pipeline", place)
    for place in on:
        specs.check_tree(data, "data_sharding", "pipeline", place)


def slices(token_slices: Sequence[int] | None) -> None:
    """Require that every token slice has a positive whole number of tokens.

    Raises:
        UsageError: one has not.
    """
    for number, tokens in enumerate(token_slices or ()):
        if not is_index(tokens) or tokens < 1:
            raise UsageError(
                f"pipeline: token_slices[{number}] is {tokens!r}: every slice needs at least one token, a whole number."
            )


def groups(tied: Sequence[Any], stages: int) -> None:
    """Require that tied parameters are groups of two or more paths, each a stage and the keys of a leaf.

    Raises:
        UsageError: they are not.
    """
    example = 'such as tied=[[(0, "table"), (3, "table")]]'
    for number, group in enumerate(tied):
        if not isinstance(group, (list, tuple)) or len(group) < 2:
            raise UsageError(f"pipeline: tied[{number}] is {group!r}: a group has two or more paths, {example}.")
        for path in group:
            if not isinstance(path, (list, tuple)) or not path or not is_index(path[0]):
                raise UsageError(f"pipeline: tied[{number}] has {path!r}: a path is a stage and keys, {example}.")
            if not 0 <= path[0] < stages:
                raise UsageError(f"pipeline: tied[{number}] has {path!r}, but the stages are 0 to {stages - 1}.")


def context(stages: Sequence[Callable[..., Any]], token_slices: Sequence[int] | None) -> None:
    """Require that a stage reads the tokens before its slice, if sequences are sliced.

    Raises:
        UsageError: no stage has the parameter ``context``.
    """
    if token_slices is not None and not any("context" in parameters(stage) for stage in stages):
        names = ", ".join(dict.fromkeys(map(function_name, stages)))
        raise UsageError(
            f"pipeline: token_slices={list(token_slices)} were given, but no stage ({names}) has a parameter "
            "'context', so attention would see only the tokens of its own slice. Write stage(params, x, context) and "
            "let attention read context.append(key, value) with context.mask."
        )


def sharded(
    fsdp: str | None, on: Sequence[VirtualSlice], stages: Sequence[Callable[..., Any]], shardings: Any, data: Any,
    slices: Any,
) -> None:  # fmt: skip
    """Require that stages can be split as ``fsdp=`` says.

    Raises:
        UsageError: there is no such mode for stages, a place has too few axes, or another option splits them, too.
    """
    if fsdp is None:
        return
    if fsdp not in STAGE_MODES:
        meant = did_you_mean(fsdp, STAGE_MODES) if isinstance(fsdp, str) else ""
        raise UsageError(
            f"pipeline: fsdp={fsdp!r} is no mode for stages; choose from {', '.join(map(repr, STAGE_MODES))}.{meant} "
            f"Gradients of a microbatch are reduced at once, so 'zero1' and 'zero2' would be 'ddp' and 'zero3'."
        )
    for place in on:
        # Called for its error alone: a place with too few axes is refused here, not where a stage is first traced.
        mode_of(fsdp, place, None)
    for name, given in (("shardings", shardings), ("data_sharding", data), ("token_slices", slices)):
        if given is not None:
            raise UsageError(f"pipeline: fsdp={fsdp!r} splits parameters and batch itself; leave {name}= out.")
    for number, stage in enumerate(stages):
        if "key" in parameters(stage):
            raise UsageError(
                f"pipeline: stage {number} ({function_name(stage)}) takes a key for dropout, and with fsdp={fsdp!r} "
                f"every device would drop the same positions of its rows. Leave dropout out, or fsdp=."
            )
