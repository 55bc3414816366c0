"""Orders of enqueues: a cycle is found exactly where there is one, and is one."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.controller.orders import find_cycle
from tests.support.examples import examples

GANGS = list("abcdefg")
ORDERS = st.dictionaries(
    st.integers(0, 4), st.lists(st.sampled_from(GANGS), unique=True, max_size=len(GANGS)), max_size=5
)


def can_all_run(orders: dict[int, list[str]]) -> bool:
    """Whether some order of all gangs contains each of these: every one is tried, so keep them few."""
    gangs = sorted({gang for order in orders.values() for gang in order})
    return any(
        all([gang for gang in whole if gang in order] == order for order in orders.values())
        for whole in itertools.permutations(gangs)
    )


@given(ORDERS)
@examples(150)
def test_a_cycle_is_found_exactly_where_no_order_of_all_gangs_fits(orders) -> None:
    cycle = find_cycle(orders)
    assert (cycle is None) == can_all_run(orders)
    assert bool(pw.check_orders(orders)) == (cycle is None)


@given(ORDERS)
@examples(300)
def test_a_cycle_that_is_found_is_one(orders) -> None:
    cycle = find_cycle(orders) or []
    for link, following in zip(cycle, cycle[1:] + cycle[:1], strict=True):
        order = orders[link.island]
        assert order.index(link.earlier) < order.index(link.later), link
        assert link.later == following.earlier
    assert len({link.island for link in cycle}) == len(cycle) != 1


@given(st.permutations(GANGS), st.lists(st.sets(st.sampled_from(GANGS)), max_size=6))
@examples(100)
def test_parts_of_one_total_order_always_fit(whole, parts) -> None:
    """What a single scheduler gives its islands."""
    assert pw.check_orders({island: [gang for gang in whole if gang in part] for island, part in enumerate(parts)})


def test_two_clients_in_opposite_orders_are_named() -> None:
    found = pw.check_orders({0: ["ann's step", "bob's step"], 1: ["bob's step", "ann's step"]})
    assert not found
    assert repr(found) == (
        "<island 0 has ann's step before bob's step, island 1 has bob's step before ann's step: "
        "each waits for the other for ever>"
    )
    assert {link.island for link in found.cycle} == {0, 1}


def test_three_devices_can_wait_for_each_other_though_no_two_disagree() -> None:
    found = pw.check_orders({"dev 0": ["a", "x", "b"], "dev 1": ["b", "c"], "dev 2": ["c", "a"]})
    assert repr(found).endswith("each waits for the next for ever>")
    assert [link.earlier for link in found.cycle] == [link.later for link in (found.cycle[-1], *found.cycle[:-1])]
    assert "dev 0 has a before b" in repr(found)


def test_orders_that_fit_say_how_many() -> None:
    assert repr(pw.check_orders({0: ["a", "b"], 1: ["a", "b", "c"]})) == ("<3 gangs in 2 orders, which fit together>")
    assert pw.check_orders({})


def test_a_gang_is_enqueued_once() -> None:
    with pytest.raises(
        pw.UsageError, match=r"check_orders\(\['a'\]\): a dictionary is needed, .*\{0: \['a', 'b'\], 1:"
    ):
        pw.check_orders(["a"])  # type: ignore[arg-type]
    with pytest.raises(pw.UsageError, match=r"check_orders: 0 has 'a' twice\. .* such as \('a', 0\) and \('a', 1\)"):
        pw.check_orders({0: ["a", "b", "a"]})
    for path in ("rank0.json.gz", Path("rank0.json.gz")):
        with pytest.raises(pw.UsageError, match=r"0 has 'rank0.json.gz', .* of a trace is pw\.load\('rank0.json.gz'\)"):
            pw.check_orders({0: path})  # type: ignore[dict-item]


def test_long_orders_take_time_in_proportion() -> None:
    """Long lists: with anything worse than their total length this would not end."""
    order = list(range(100_000))
    swapped = [*order[:-2], order[-1], order[-2]]
    assert pw.check_orders(dict.fromkeys(range(3), order))
    cycle = find_cycle({0: order, 1: order, 2: order, 3: swapped})
    assert {gang for link in cycle or () for gang in (link.earlier, link.later)} == {99_998, 99_999}
