"""Collectives of several ranks: the one that differs is named, by rank, position and group."""

from __future__ import annotations

import pytest

import pathways_nb as pw
from tests.support.kineto_trace import host, kernel, nccl, write


def ranks(tmp_path, *each) -> dict[int, pw.Run]:
    return {
        rank: pw.load(write(tmp_path / f"rank{rank}.json.gz", events, distributedInfo={"rank": rank}))
        for rank, events in enumerate(each)
    }


def usual(late: float = 0.0) -> list[dict]:
    """Collectives of two groups, and an exchange in which every rank has its own part."""
    return [
        kernel("gemm", late, 5.0),
        nccl("AllGather", 10 + late, 5.0, 1024),
        nccl("ReduceScatter", 20 + late, 5.0, 1024),
        nccl("SendRecv", 25 + late, 1.0, 77 + int(late)),
        nccl("AllReduce", 30 + late, 5.0, 4096, group="tensor parallel", ranks="[0, 1, 2]"),
        nccl("AllReduce", 40 + late, 5.0, 1024),
    ]


def test_equal_orders_fit_whenever_they_ran(tmp_path) -> None:
    found = pw.check_orders(ranks(tmp_path, usual(), usual(3.0), usual(900.0)))
    assert found
    assert (found.orders, found.gangs, found.difference) == (3, 4, None)
    assert repr(found) == (
        "<4 gangs in 3 orders, which fit together within each of 2 groups; the order between groups is not told>"
    )


def test_the_collective_that_differs_is_named(tmp_path) -> None:
    other = usual()
    other[2] = nccl("AllGather", 20, 5.0, 2048)
    found = pw.check_orders(ranks(tmp_path, usual(), other, usual()))
    assert not found
    assert found.difference is not None
    assert (found.difference.group, found.difference.position, found.difference.odd) == (
        "process group 0, ranks [0, 1]", 1, (1,),
    )  # fmt: skip
    assert repr(found) == (
        "<collective 1 of process group 0, ranks [0, 1]: on rank 1 it is allgather of 8.19 KB Float at 0.000020 s; on the "
        "others (0, 2) it is reducescatter of 4.1 KB Float at 0.000020 s>"
    )


def test_a_rank_that_sends_no_more_is_named(tmp_path) -> None:
    found = pw.check_orders(ranks(tmp_path, usual(), usual()[:-1], usual()))
    assert "on rank 1 it is none, as it sent no more or its trace ends" in repr(found)


def test_sizes_of_groups_are_compared_apart(tmp_path) -> None:
    other = usual()
    other[3], other[4] = nccl("AllReduce", 25, 5.0, 4096, group="tensor parallel", ranks="[0, 1, 2]"), other[3]
    assert pw.check_orders(ranks(tmp_path, usual(), other)), "another order between groups, the same in each"


def test_of_groups_the_first_that_differs_in_time_is_named(tmp_path) -> None:
    other = usual()
    other[5] = nccl("AllReduce", 40, 5.0, 8)
    other[4] = nccl("AllReduce", 30, 5.0, 8, group="tensor parallel", ranks="[0, 1, 2]")
    found = pw.check_orders(ranks(tmp_path, usual(), usual(), other))
    assert found.difference is not None
    assert found.difference.group.startswith("process group tensor parallel")


def test_without_groups_all_are_one(tmp_path) -> None:
    def old(*names: str) -> list[dict]:
        return [
            kernel(f"ncclKernel_{name}_RING_LL_Sum_float(ncclDevComm*)", 10.0 * at, 5.0, 20)
            for at, name in enumerate(names)
        ]

    found = pw.check_orders(ranks(tmp_path, old("AllReduce", "AllGather"), old("AllReduce", "Broadcast")))
    assert "collective 1 of all ranks" in repr(found)
    assert "broadcast" in repr(found)


def test_devices_of_one_trace_are_compared_as_well(tmp_path) -> None:
    two = [one for device in (0, 1) for one in (dict(each) for each in usual())]
    for at, one in enumerate(two):
        one["args"] = one["args"] | {"device": int(at >= len(usual()))}
    two[-1] = nccl("AllGather", 40, 5.0, 1024)
    two[-1]["args"]["device"] = 1
    found = pw.check_orders(ranks(tmp_path, two))
    assert found.difference is not None
    assert set(found.difference.sent) == {"0, GPU 0", "0, GPU 1"}


def test_orders_and_runs_do_not_mix(tmp_path) -> None:
    (run,) = ranks(tmp_path, usual()).values()
    with pytest.raises(pw.UsageError, match="some values are runs and some are orders"):
        pw.check_orders({0: run, 1: ["a", "b"]})


def test_an_all_to_all_is_one_whatever_its_kernel_and_its_sizes(tmp_path) -> None:
    """NCCL has one kernel for sends, receives and all-to-alls; what each rank sends in the latter differs."""

    def exchange(elements: int, what: str) -> list[dict]:
        made = nccl("SendRecv", 10.0, 5.0, elements)
        made["args"]["Collective name"] = what
        return [made, nccl("AllReduce", 20.0, 5.0, 8)]

    assert pw.check_orders(ranks(tmp_path, exchange(5, "all_to_allv"), exchange(9, "all_to_allv"))).gangs == 2
    found = pw.check_orders(ranks(tmp_path, exchange(5, "all_to_allv"), exchange(9, "send")))
    assert "on rank 1 it is allreduce" in repr(found)
    assert "on the others (0) it is alltoall" in repr(found)


def test_runs_without_collectives_say_so(tmp_path) -> None:
    with pytest.raises(pw.UsageError, match="none of these runs has a collective; sends and receives"):
        pw.check_orders(
            ranks(
                tmp_path, [kernel("gemm", 0.0, 1.0)], [nccl("SendRecv", 0.0, 1.0, 3) | {"name": "ncclKernel_SendRecv"}]
            )
        )


def calls(*sent: tuple[str, str, int], waits_for: int | None = None) -> list[dict]:
    """What a process called, in order: collective, group and elements; from ``waits_for`` on no kernel has ended."""
    events = [kernel("gemm", 0.0, 1.0)]
    for at, (what, group, elements) in enumerate(sent):
        made = nccl(what, 10.0 * at + 5, 4.0, elements, group, "[0, 1]")
        call = host("cpu_op", "record_param_comms", 10.0 * at, 2.0)
        call["args"] |= made["args"]
        events += [call, host("cpu_op", "record_param_comms", 10.0 * at + 3, 1.0)]
        events[-1]["args"]["Collective name"] = "wait"
        events += [made] if waits_for is None or at < waits_for else []
    return events


def test_a_collective_that_never_ended_is_told_by_its_call(tmp_path) -> None:
    """What waits on a device for ever has no kernel in a trace; its call is there."""
    one = calls(("AllReduce", "0", 8), ("AllReduce", "0", 16), waits_for=1)
    other = calls(("AllReduce", "0", 8), ("AllGather", "0", 16), waits_for=1)
    assert pw.check_orders(ranks(tmp_path, one, one)).gangs == 2
    found = pw.check_orders(ranks(tmp_path, one, other))
    assert repr(found) == (
        "<collective 1 of process group 0, ranks [0, 1]: on rank 1 it is allgather of 64 B Float at 0.000010 s; on the "
        "others (0) it is allreduce of 64 B Float at 0.000010 s>"
    )
    for rank, run in ranks(tmp_path, one, other).items():
        run.save(tmp_path / f"{rank}.run")
    assert repr(pw.check_orders({rank: pw.load(tmp_path / f"{rank}.run") for rank in (0, 1)})) == repr(found)


def test_opposite_orders_of_two_groups_are_named_and_are_no_certain_hang(tmp_path) -> None:
    a, b = ("AllReduce", "a", 8), ("AllGather", "b", 8)
    assert pw.check_orders(ranks(tmp_path, calls(a, b, b), calls(a, b, b))).between == ()
    found = pw.check_orders(ranks(tmp_path, calls(a, a, b), calls(a, b, a)))
    assert found
    assert repr(found) == (
        "<3 gangs in 2 orders, which fit together within each group; but rank 0 has allreduce 1 of process group a, ranks "
        "[0, 1] before allgather 0 of process group b, ranks [0, 1], rank 1 has allgather 0 of process group b, ranks "
        "[0, 1] before allreduce 1 of process group a, ranks [0, 1]: they hang unless collectives of these groups run at "
        "the same time>"
    )


@pytest.mark.parametrize("names", [(0, 1), ("0", "1"), ("rank 0", "rank 1")])
def test_a_rank_that_sent_none_is_named(tmp_path, names) -> None:
    with_rank = ranks(tmp_path, calls(("AllReduce", "0", 8)), [kernel("gemm", 0.0, 1.0)])
    for run in with_rank.values():
        run.about["trace"]["rank"] = -1
    found = pw.check_orders(dict(zip(names, with_rank.values(), strict=True)))
    assert "on rank 1 it is none, as it sent no more or its trace ends" in repr(found)


def test_a_rank_of_another_group_is_not_waited_for(tmp_path) -> None:
    apart = nccl("AllReduce", 0.0, 1.0, 8, "tp", "[0, 2]")
    assert pw.check_orders(ranks(tmp_path, [apart], [kernel("gemm", 0.0, 1.0)], [apart]))
    assert not pw.check_orders(ranks(tmp_path, [apart], [kernel("gemm", 0.0, 1.0)], [kernel("gemm", 0.0, 1.0)]))


@pytest.mark.parametrize("form", ["c10d::{}_", "nccl:{}"])
def test_calls_of_older_versions_tell_their_names(tmp_path, form) -> None:
    def old(*names: str) -> list[dict]:
        told = [host("cpu_op", form.format(name), 10.0 * at, 1.0) for at, name in enumerate(names)]
        again = [one | {"cat": "gpu_user_annotation", "pid": 0, "tid": 7} for one in told]  # what it was called for
        return [kernel("ncclKernel_SendRecv_RING(x)", 0.0, 1.0), *told, *again]

    assert pw.check_orders(ranks(tmp_path, old("alltoall", "barrier"), old("alltoall", "barrier"))).gangs == 2
    found = pw.check_orders(ranks(tmp_path, old("alltoall", "allreduce"), old("alltoall", "allgather")))
    assert "collective 1 of all ranks: on rank 1 it is allgather" in repr(found)
