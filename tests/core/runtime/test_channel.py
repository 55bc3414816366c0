"""Channels: what is sent arrives whole and in order, nobody waits for a slow reader, and strangers are refused."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pathways_nb.runtime.hosts import channel
from pathways_nb.runtime.hosts.channel import Channel, Door
from tests.support.waiting import until

LARGE = bytes(range(256)) * (1 << 15)


@pytest.fixture
def ends(watchdog: None) -> Iterator[tuple[Channel, Channel]]:
    """The two ends of a channel."""
    came: queue.SimpleQueue[Channel] = queue.SimpleQueue()
    made = Door.opened("127.0.0.1", came.put).enter(), came.get()
    yield made
    for one in made:
        one.close()


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_messages_arrive_whole_and_in_order_whatever_their_sizes(ends) -> None:
    here, there = ends
    sent = [b"first", b"", LARGE, *(bytes([at]) * at for at in range(100)), LARGE[:70000]]
    sender = in_thread(lambda: [here.send(one) for one in sent])
    assert [there.receive() for _ in sent] == sent
    sender.join()
    there.send(b"answer")
    assert here.receive(10.0) == b"answer"


def test_the_main_thread_and_others_send_into_one_order_each(ends) -> None:
    here, there = ends
    other = in_thread(lambda: [here.send(b"other %d" % at) for at in range(50)])
    for at in range(50):
        here.send(b"main %d" % at)
    other.join()
    came = [there.receive() for _ in range(100)]
    for name in (b"main", b"other"):
        assert [one for one in came if one.startswith(name)] == [b"%s %d" % (name, at) for at in range(50)]


def test_who_sends_does_not_wait_for_a_reader_that_stands_still(ends) -> None:
    here, there = ends
    sender = in_thread(lambda: [here.send(LARGE) for _ in range(8)])
    sender.join(10.0)
    assert not sender.is_alive()
    assert [there.receive() == LARGE for _ in range(8)] == [True] * 8


def test_nothing_came_in_time(ends) -> None:
    assert ends[0].receive(0.01) is None


def test_who_waits_hears_that_the_other_side_is_gone_and_who_sends_does_not(ends) -> None:
    here, there = ends
    found: list[str] = []

    def wait() -> None:
        try:
            here.receive()
        except EOFError:
            found.append("over")

    waiting = in_thread(wait)
    there.close()
    waiting.join()
    assert found == ["over"]
    for _ in range(3):
        in_thread(lambda: here.send(b"to nobody")).join()
    for one in ends:
        with pytest.raises(EOFError):
            one.receive()


def test_strangers_are_refused_and_keep_nobody_out(watchdog, monkeypatch) -> None:
    monkeypatch.setattr(channel, "_PATIENCE", 1)
    came: list[Channel] = []
    door = Door.opened("127.0.0.1", came.append)
    assert repr(door.key) not in repr(door)
    with socket.create_connection(door.address) as silent, socket.create_connection(door.address) as loud:
        loud.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        with pytest.raises(OSError, match="does not know the key"):
            replace(door, key=b"another key").enter()
        made = door.enter()
        until(lambda: bool(came))
        silent.settimeout(10.0)
        while silent.recv(100):  # the question, and then the end
            pass
    made.close()
    assert len(came) == 1
    came[0].close()
