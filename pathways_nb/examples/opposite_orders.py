"""Two processes that enqueue two all-reduces in opposite orders: what one scheduler prevents (Pathways, section 4.4).

Without a single scheduler, every host enqueues on its own devices in the order of its own clients. Two processes with
one device each (``jax.distributed`` over gloo, on this computer) sum some numbers of ann's and one number of bob's over
both devices, in the same order and in opposite orders. Devices of a pod would wait for each other for ever. Gloo pairs
whatever comes next, so sums are silently wrong, or the processes abort. The caller's process must survive that: this
file runs itself in two child processes, and ``python -m pathways_nb.examples.opposite_orders`` prints the table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

ORDERS = {
    "same": {"process 0": ("ann", "bob"), "process 1": ("ann", "bob")},
    "opposite": {"process 0": ("ann", "bob"), "process 1": ("bob", "ann")},
}
"""The clients whose all-reduces each process enqueues first and second."""
SENT = {"ann": (1.0, 2.0), "bob": (10.0, 20.0)}
"""The numbers that the two processes contribute for each client."""
ROUNDS = (("same", 1, 1), ("same", 1, 1024), ("opposite", 1, 1), ("opposite", 1, 1024))
"""Order, and the number of elements in ann's and bob's messages. The round that ends the processes is last."""
_GRACE = 3.0
"""Seconds that one process may outlive the other."""


@dataclass(frozen=True)
class Case:
    """The outcome of one round.

    Args:
        order: a key of ``ORDERS``.
        sizes: number of elements in ann's and bob's messages.
        expected: the right sums, ann's and bob's.
        got: the sums of each process; ``None`` if it returned none.
        exit_codes: of each process; ``None`` if it continued or had to be killed.
        text: what happened, in words.
    """

    order: str
    sizes: tuple[int, int]
    expected: tuple[float, float]
    got: tuple[tuple[float, float] | None, tuple[float, float] | None]
    exit_codes: tuple[int | None, int | None]
    text: str

    @property
    def right(self) -> bool:
        """Whether both processes got the right sums."""
        return self.got == (self.expected, self.expected)


def demonstrate(limit: float = 120.0) -> list[Case]:
    """Run all rounds, print a table of them, and return them.

    Args:
        limit: seconds after which processes that hang are killed.

    Returns:
        The rounds that were run; empty where JAX cannot join two processes.
    """
    results, codes, complaint = _run(limit)
    if not any(results):
        sys.stdout.write(f"JAX could not join two processes here, so there is nothing to see: {complaint}\n")
        return []
    cases = [_case(number, results, codes) for number in range(max(map(len, results)) + 1) if number < len(ROUNDS)]
    sys.stdout.write(table(cases))
    return cases


def table(cases: list[Case]) -> str:
    """Return the cases as lines of text, in columns."""
    ann, bob = ("+".join(f"{part:g}" for part in parts) for parts in SENT.values())
    rows = [("order", "messages", f"process 0: {ann}, {bob}", f"process 1: {ann}, {bob}", "")]
    for case in cases:
        sums = ["no answer" if got is None else f"{got[0]:g}, {got[1]:g}" for got in case.got]
        rows.append((case.order, "equal" if len(set(case.sizes)) == 1 else "unequal", sums[0], sums[1], case.text))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)


def _case(number: int, results: list[list[tuple[float, float]]], codes: list[int | None]) -> Case:
    """Return the outcome of round ``number``.

    Args:
        number: position in ``ROUNDS``.
        results: for each process the sums of each round that it finished.
        codes: for each process its exit code, ``None`` if it was killed.
    """
    order, *sizes = ROUNDS[number]
    # A process that ends in a round wrote the sums of the rounds before it only.
    got = [lines[number] if number < len(lines) else None for lines in results]
    ended = [None if sums is not None else code for sums, code in zip(got, codes, strict=True)]
    expected = sum(SENT["ann"]), sum(SENT["bob"])
    if got == [expected, expected]:
        text = "right"
    elif None not in got:
        text = "wrong, without an error"
    elif any(ended):
        text = f"aborted (exit codes {', '.join('none' if code is None else str(code) for code in ended)})"
    else:
        text = "waited for each other until they were killed"
    return Case(order, (sizes[0], sizes[1]), expected, (got[0], got[1]), (ended[0], ended[1]), text)


def _run(limit: float) -> tuple[list[list[tuple[float, float]]], list[int | None], str]:
    """Run all rounds in two child processes.

    Args:
        limit: seconds after which processes that hang are killed.

    Returns:
        For each process the sums of each round that it finished; their exit codes; and an error that one of them
        printed.
    """
    # One device each, whatever the caller's JAX was told.
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "XLA_FLAGS": ""}
    with ExitStack() as files:
        folder = files.enter_context(tempfile.TemporaryDirectory())  # of this user, which no other can enter
        complaints = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in (0, 1)]
        children = [
            subprocess.Popen(
                # -P: no file of this folder is imported in place of a module of the library.
                [sys.executable, "-P", __file__, str(rank), f"unix:{folder}/meeting"],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints[rank], text=True,
            )
            for rank in (0, 1)
        ]  # fmt: skip
        codes = _wait(children, limit)
        said = [child.communicate()[0] for child in children]
        for file in complaints:
            file.seek(0)
        errors = [line for file in complaints for line in file if "Error" in line]
    results = [[(sums[0], sums[1]) for sums in map(json.loads, text.splitlines())] for text in said]
    return results, codes, errors[-1].strip() if errors else f"no answer within {limit:g} s."


def _wait(children: list[subprocess.Popen[str]], limit: float) -> list[int | None]:
    """Return the exit codes of the processes; one that hangs or long outlives the other is killed and has ``None``."""
    deadline = time.monotonic() + limit
    codes = [child.poll() for child in children]
    try:
        while None in codes and time.monotonic() < deadline:
            time.sleep(0.02)
            if any(code is not None for code in codes):
                # The other process may wait for a peer that no longer exists.
                deadline = min(deadline, time.monotonic() + _GRACE)
            codes = [child.poll() for child in children]
    finally:
        for child in children:
            child.kill()
    return codes


# ---- in the children


def _join(rank: int, meeting: str) -> Any:
    """Return the devices of both processes as a mesh, after connecting this process with the other."""
    import jax
    import numpy as np

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(meeting, num_processes=2, process_id=rank, coordinator_bind_address=meeting)
    return jax.sharding.Mesh(np.array(jax.devices()), "x")


def _work(rank: int, meeting: str) -> None:
    """Run all rounds in a child process and write the sums of each as one line of JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # gloo prints to standard output as well; keep the answers apart
    mesh = _join(rank, meeting)
    for order, *sizes in ROUNDS:
        jobs = {name: _all_reduce(mesh, SENT[name][rank], size) for name, size in zip(SENT, sizes, strict=True)}
        sums = {}
        for name in ORDERS[order][f"process {rank}"]:
            call, argument = jobs[name]
            # A CPU may run two programs at once; the devices of a pod run one after another, so wait for each here.
            sums[name] = float(call(argument).block_until_ready().addressable_shards[0].data[0])
        answers.write(json.dumps([sums[name] for name in SENT]) + "\n")
        answers.flush()


def _all_reduce(mesh: Any, value: float, size: int) -> tuple[Any, Any]:
    """Return a compiled sum over both devices, and this process's part of its argument.

    Args:
        mesh: the devices of both processes.
        value: this process's number.
        size: how many times the number is repeated.
    """
    import jax
    import numpy as np

    rows = jax.sharding.PartitionSpec("x")
    sharding = jax.sharding.NamedSharding(mesh, rows)
    # Each process has its part only: neither could compute the sum alone.
    argument = jax.make_array_from_process_local_data(sharding, np.full(size, value, np.float32))
    total = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=rows, out_specs=rows))
    return total.lower(argument).compile(), argument


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _work(int(sys.argv[1]), sys.argv[2])
    else:
        demonstrate()
