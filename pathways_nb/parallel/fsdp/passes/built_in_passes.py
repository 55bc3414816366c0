"""The passes that every step has: each yields edits, so that the graph and the search read the same few lines.

``sink`` gathers late, ``regather`` gathers again for the backward pass, ``bucket`` merges collectives, ``prefetch``
begins gathers early again, ``finish`` completes gradients late, and ``pace`` makes the compiler keep the order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pathways_nb.parallel.fsdp.passes.edits import Edit, StepCollectives
from pathways_nb.parallel.fsdp.passes.pass_registry import built_in

Buckets = Sequence[Sequence[int]]
"""Positions of parameters, by bucket."""


@built_in("sink")
def sink(step: StepCollectives) -> Iterator[Edit]:
    """Yield the moves that gather each parameter immediately before the first operation that reads it.

    So its whole array lives no longer than needed. Before the pass, every gather stands in front of the whole step, as
    a function that gathers its parameters when it is called would write it.
    """
    for gather in step.gathers:
        yield step.move(gather, before=gather.read)


@built_in("regather", after="sink")
def regather(step: StepCollectives, keep: Collection[int] = ()) -> Iterator[Edit]:
    """Yield the copies that gather parameters again where the backward pass first reads them (ZeRO-3).

    So they are freed between.

    Args:
        step: the step.
        keep: positions of parameters that stay gathered from the forward to the backward pass.
    """
    for gather in step.gathers:
        if not gather.again and not any(param in keep for param in gather.params):
            yield step.copy(gather)


@built_in("bucket", after="regather")
def bucket(step: StepCollectives, forward: Buckets, backward: Buckets | None = None) -> Iterator[Edit]:
    """Yield the merges that make one collective of those of a bucket (SimpleFSDP, section 3.2).

    It pays the latency of one. A bucket is gathered where the first of its parameters was, and reduced where the last
    of its gradients is made.

    Args:
        step: the step.
        forward: the buckets of the forward pass.
        backward: the buckets of the backward pass: of repeated gathers and of gradients; by default the same.
    """
    second = forward if backward is None else backward
    # A bucket of the backward pass is two collectives: its repeated gathers, and its reductions.
    for kind, of in step.alike.items():
        for params in forward if kind == "gather" else second:
            members = [of[param] for param in params if param in of]
            if len(members) > 1:
                yield step.merge(*members)


@built_in("prefetch", after="bucket")
def prefetch(step: StepCollectives, distance: int = 1) -> Iterator[Edit]:
    """Yield the moves that issue each gather before the first use of the gather ``distance`` in front of it.

    So computation hides it. SimpleFSDP issues gathers in this order (section 3.2): ``AG12 AG34 wait12 C1 C2 wait34 …``.
    A distance of 1 holds two buckets at once, and each more holds one more.

    Args:
        step: the step.
        distance: how many gathers are under way before their turn.
    """
    for number, gather in enumerate(step.gathers if distance else ()):
        if number:  # nothing is in front of the first
            # A pass of the user's may have moved it further in front already.
            yield step.move(gather, before=min(step.gathers[max(number - distance, 0)].read, gather.at))


@built_in("finish", after="prefetch", is_timed=False)
def finish(step: StepCollectives) -> Iterator[Edit]:
    """Yield the edits that unpack and convert reduced gradients behind everything else.

    Otherwise the operation behind each reduction would wait for it, although the backward pass needs none of them.
    """
    for reduction in step.reductions:
        yield step.finish(reduction)


@built_in("pace", after="finish", is_timed=False)
def pace(step: StepCollectives) -> Iterator[Edit]:
    """Yield the edits that keep all gathers in their places when the step is compiled; see ``lowering``."""
    for gather in step.gathers:
        yield step.pace(gather)
