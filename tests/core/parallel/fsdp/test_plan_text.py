"""Buckets as a text: what is typed is what is planned, and what is planned can be typed again."""

from __future__ import annotations

import random

import pytest

from pathways_nb.errors import PlanError
from pathways_nb.parallel.fsdp.fsdp_plan import Bucket, FsdpPlan, plan_of
from pathways_nb.parallel.fsdp.plan_text import plan_of_text, text_of_plan

BLOCK = ("down", "norm", "up")
NAMES = ("embedding", *(f"layers.{n}.{part}" for n in range(12) for part in BLOCK), "head")


def layer(number: int) -> tuple[str, ...]:
    return tuple(f"layers.{number}.{part}" for part in BLOCK)


def sets(buckets: tuple[Bucket, ...]) -> set[tuple[frozenset[str], bool]]:
    return {(frozenset(bucket.params), bucket.keep) for bucket in buckets}


def test_a_line_is_a_bucket_and_a_star_is_one_for_each_text() -> None:
    plan = plan_of_text("embedding, head\nlayers.*", NAMES, prefetch=3)
    assert sets(plan.buckets) == {(frozenset(("embedding", "head")), False)} | {
        (frozenset(layer(n)), False) for n in range(12)
    }
    assert (plan.prefetch, plan.backward, plan.name) == (3, None, "own")


def test_lines_without_a_star_take_theirs_first_wherever_they_stand() -> None:
    plan = plan_of_text("layers.*; layers.0-2 kept; embedding; head", NAMES)
    assert (frozenset((*layer(0), *layer(1), *layer(2))), True) in sets(plan.buckets)
    assert len(plan.buckets) == 3 + 9


def test_items_with_the_same_star_share_a_bucket() -> None:
    plan = plan_of_text("layers.*.norm, layers.*.up\nlayers.*.down\nembedding\nhead", NAMES)
    assert (frozenset(("layers.11.norm", "layers.11.up")), False) in sets(plan.buckets)
    assert len(plan.buckets) == 26


def test_the_backward_pass_may_have_its_own_buckets() -> None:
    plan = plan_of_text("embedding\nhead\nlayers.*\nbackward:\nhead, embedding, layers.0-11", NAMES)
    assert len(plan.buckets) == 14
    assert plan.backward is not None
    assert sets(plan.backward) == {(frozenset(NAMES), False)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("embeding\nlayers.*", "line 1 of the buckets: 'embeding' is no parameter and no part of the model. "
         "Did you mean 'embedding'? Write names such as head, or * for each of their parts."),
        ("embedding; head; layers.0-9; layers.12", "line 4 of the buckets: 'layers.12' is no parameter"),
        ("layers.*", "parameter embedding and 1 more of the model is in no bucket of the forward plan."),
        ("embedding\nhead\nlayers.*\nlayers.3, layers.4\nlayers.3.up",
         "parameter layers.3.up is in the forward plan's buckets 2 and 3; it must be in one."),
        ("embedding; head; layers.*; backward:; layers.*", "is in no bucket of the backward plan."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(text: str, says: str) -> None:
    with pytest.raises(PlanError) as refused:
        plan_of_text(text, NAMES)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([("embedding",), ("head",), *map(layer, range(12))], "embedding\nhead\nlayers.*"),
        ([NAMES], "embedding, layers, head"),
        ([("embedding", "head", *layer(0), *layer(1)), *map(layer, range(2, 12))],
         "embedding, layers.0-1, head\nlayers.*"),
        ([(name,) for name in NAMES], "embedding\nlayers.*.down\nlayers.*.norm\nlayers.*.up\nhead"),
    ],
)  # fmt: skip
def test_a_plan_has_a_short_text(groups: list[tuple[str, ...]], text: str) -> None:
    assert text_of_plan(plan_of(groups), NAMES) == text


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_is_read_back_from_its_text(seed: int) -> None:
    chance = random.Random(seed)

    def cut() -> tuple[Bucket, ...]:
        found: list[list[str]] = [[]]
        for name in NAMES:
            found[-1].append(name)
            if chance.random() < (0.1, 0.4, 0.9)[seed % 3]:
                found.append([])
        return tuple(Bucket(tuple(names), chance.random() < 0.3) for names in found if names)

    plan = FsdpPlan(cut(), cut() if seed % 2 else None)
    back = plan_of_text(text_of_plan(plan, NAMES), NAMES)
    assert sets(back.buckets) == sets(plan.buckets)
    assert sets(back.reduced) == sets(plan.reduced)
