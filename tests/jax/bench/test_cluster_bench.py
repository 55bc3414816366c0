"""The bench of islands of hosts, without hosts: what its chains compute, and what it counts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pathways_nb.bench import _hosts, _ray_actors, report


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what an actor sets for its process."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


class _Call:
    """An actor's method, carried out at once; ``remote`` returns the value that a reference would stand for."""

    def __init__(self, do):
        self.remote = do


def chains(count: int) -> tuple[_ray_actors.ActorChains, list[str]]:
    """Return chains on actors in this process, and what they are called with."""
    calls: list[str] = []

    def handle(number: int) -> SimpleNamespace:
        actor = _ray_actors.Actor()

        def add(*args):
            calls.append(f"{number}:{args[0]}")
            return actor.add(*args)

        return SimpleNamespace(add=_Call(add), fused=_Call(actor.fused))

    return _ray_actors.ActorChains(SimpleNamespace(get=lambda value: value), [handle(n) for n in range(count)]), calls


@pytest.mark.parametrize("turns", [[0] * 4, [0, 0, 1, 1], [0, 1, 0, 1]])
@pytest.mark.parametrize("how", [{}, {"blocking": True}, {"ahead": True}])
def test_actors_add_one_for_each_computation(turns, how) -> None:
    made, _ = chains(2)
    assert made.run(turns, **how) == 4.0


def test_an_actor_keeps_its_array_and_gives_it_only_to_another_actor() -> None:
    made, calls = chains(2)
    made.run([0, 0, 1, 1])
    assert calls == ["0:0.0", "0:None", "1:2.0", "1:None"]
    assert made.fused([0, 0, 1, 1]) == 4.0


def test_messages_are_counted_inside_the_block_only() -> None:
    sent: list[bytes] = []

    class Link:
        def post(self, messages: bytes) -> None:
            sent.append(messages)

    links = [Link(), Link()]
    island = SimpleNamespace(links=links)
    controller = SimpleNamespace(driver=SimpleNamespace(attachment=SimpleNamespace(islands=[island])))
    with _hosts.counted_messages(controller) as count:  # type: ignore[arg-type]
        for link in links:
            link.post(b"range")
        assert count() == 2
    links[0].post(b"after")
    assert (count(), len(sent)) == (2, 3)


def test_it_is_a_bench_and_its_helpers_are_none() -> None:
    assert "cluster" in report.names()
    assert not {"_hosts", "_ray_actors"} & set(report.names())
