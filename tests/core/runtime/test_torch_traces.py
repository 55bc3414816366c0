"""Traces of PyTorch's profiler become runs: kernels, collectives and copies on the streams of devices."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.runtime.recorded.task_kinds import op_kind
from tests.conftest import ROOT
from tests.support.kineto_trace import host, kernel, nccl, task, write

RECORDED = ROOT / "tests" / "recorded_traces"


def events() -> list[dict]:
    """Two steps: a copy to the device, two kernels, a collective beside the second; the host is slow in the second."""
    made = []
    for step, at in ((3, 0.0), (4, 1000.0)):
        made += [
            host("user_annotation", f"ProfilerStep#{step}", at, 900.0),
            host("cpu_op", "aten::linear", at + 5, 300.0),
            host("cuda_runtime", "cudaMemcpyAsync", at + 10, 10.0, call=step * 10 + 1),
            host("cuda_runtime", "cudaLaunchKernel", at + 30, 10.0, call=step * 10 + 2),
            host("cuda_runtime", "cudaLaunchKernel", at + 50 + 300 * (step == 4), 10.0, call=step * 10 + 3),
            host("cuda_runtime", "cudaDeviceSynchronize", at + 800, 5.0, call=step * 10 + 9),
            task("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", at + 30, 20.0, 7, step * 10 + 1, bytes=4096),
            kernel("void gemm<float, 128>(float*)", at + 50, 100.0, call=step * 10 + 2),
            kernel("relu", at + 150 + 250 * (step == 4), 50.0, call=step * 10 + 3),
            nccl("AllReduce", at + 160, 200.0, 1024),
            task("gpu_memset", "Memset (Device)", at + 600, 5.0, 7, 0, bytes=64),
        ]
    return made


@pytest.fixture
def run(tmp_path) -> pw.Run:
    return pw.load(write(tmp_path / "worker0.pt.trace.json.gz", events(), distributedInfo={"rank": 5, "world_size": 8}))


def test_kinds_devices_and_names_are_filled(run) -> None:
    assert isinstance(run, pw.Run)
    assert (run.name, run.islands) == ("worker0", (1,))
    on_device = run.events.without({"enqueue", "wait"})
    assert on_device["kind"].tolist() == [
        *("transfer", "compute", "compute", "collective", "compute"),
        *("transfer", "compute", "collective", "compute", "compute"),
    ]
    assert set(on_device["devices"]) == {1}
    assert set(on_device["quality"]) == {"exact"}
    (copy, *_) = on_device.of_kind("transfer")
    assert (copy["name"], copy["bytes"], copy["route"]) == ("Memcpy HtoD (Pageable -> Device)", 4096, "host")
    assert (copy["place"], copy["stream"]) == ("GPU 0, stream 7", "stream 7")
    (reduce, *_) = on_device.of_kind("collective")
    assert (reduce["bytes"], reduce["stream"]) == (4096, "stream 20")
    assert reduce["basis"] == "process group 0, ranks [0, 1]; Float; allreduce"
    assert run.about["trace"] == {"tool": "PyTorch's profiler", "devices": ["GPU 0"], "rank": 5}


def test_times_keep_their_digits_and_begin_at_the_first_call(run) -> None:
    first = run.events.select(run.events.is_("name", "void gemm<float, 128>(float*)"))
    assert first["start"] == pytest.approx([40e-6, 1040e-6], abs=1e-12), "the first call was at 10 µs"
    assert first["end"] - first["start"] == pytest.approx([100e-6, 100e-6], abs=1e-12)


def test_how_busy_the_device_is(run) -> None:
    summary = run.summary()
    assert summary.makespan == pytest.approx(1595e-6)
    # In the first step the collective begins under the second kernel, so that both are busy from 50 to 360 µs.
    assert summary.utilisation[0] == pytest.approx((310 + 5 + 100 + 200 + 50 + 5) / 1595)
    assert summary.transfers == 2
    assert sum(run.idle().of(0, 0).values()) == pytest.approx(summary.makespan)
    assert run.critical_path().length == pytest.approx(summary.makespan)


def test_a_kernel_that_waited_for_its_call_says_so(run) -> None:
    relu = np.flatnonzero(run.events.is_("name", "relu"))
    assert run.events["why"][relu].tolist() == ["", "message"], "in the second step the host sent it late"
    assert run.events["start"][run.events["released_by"][relu[1]]] == pytest.approx(1340e-6)
    assert set(run.events.of_kind("enqueue")["name"]) == {"cudaMemcpyAsync", "cudaLaunchKernel"}, (
        "those that sent tasks"
    )
    assert run.idle().seconds["dispatch"] > 0


def test_steps_are_the_launches_of_ops(run) -> None:
    assert set(run.ops["launch"]) == {"ProfilerStep"}
    assert np.unique(run.ops["run"]).tolist() == [0, 1]
    assert run.ops.of(run=0)["kind"].tolist() == ["host", "compute", "compute", "collective", "compute"]


def test_the_table_of_kinds_can_be_extended(tmp_path) -> None:
    path = write(tmp_path / "a.json", [kernel("my_ring_exchange", 0, 1.0), kernel("gemm", 1, 1.0)])
    assert set(pw.load(path).events["kind"]) == {"compute"}
    assert pw.load(path, kinds={"ring_": "collective"}).events["kind"].tolist() == ["collective", "compute"]
    with pytest.raises(pw.UsageError, match=r"kinds=\{'x': 'colective'\}\): choose from 'collective'"):
        pw.load(path, kinds={"x": "colective"})
    with pytest.raises(pw.UsageError, match=r"kinds=\{'\(': …\}\): this is no regular expression"):
        pw.load(path, kinds={"(": "collective"})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "collective"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "collective"),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)", "collective"),
        ("void deep_ep::internode::dispatch<false, 8>(int4*)", "collective"),
        ("mscclKernel_Sum_half_SIMPLE_false", "collective"),
        ("ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)", "collective"),
        ("Memcpy DtoD (Device -> Device)", "transfer"),
        ("Memcpy PtoP (Device -> Device)", "transfer"),
        ("__amd_rocclr_copyBuffer.kd", "transfer"),
        ("MemcpyD2H", "transfer"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(int)", "compute"),
        ("void at::native::(anonymous namespace)::reflection_pad2d_out_kernel<float>", "compute"),
        ("Memset (Device)", "compute"),
        ("loop_copy_fusion", "compute"),
    ],
)
def test_kinds_of_real_names(tmp_path, name, kind) -> None:
    (found,) = pw.load(write(tmp_path / "a.json", [kernel(name, 0, 1.0)])).events["kind"]
    assert found == kind


def test_what_is_not_understood_is_said(tmp_path) -> None:
    odd = [host("mtia_ccp_events", "x", 0.0, 1.0), host("mtia_ccp_events", "x", 2.0, 1.0)]
    run = pw.load(write(tmp_path / "a.json", [kernel("gemm", 1, 1.0), *odd]))
    assert "not understood: category 'mtia_ccp_events' (2 events)" in run.summary_line()
    run.save(tmp_path / "a.run")
    assert pw.load(tmp_path / "a.run").summary_line() == run.summary_line()


def test_without_devices_the_outermost_operations_of_threads_are_the_tasks(tmp_path) -> None:
    ops = [host("cpu_op", "aten::linear", 0, 10), host("cpu_op", "aten::addmm", 1, 8), host("cpu_op", "aten::relu", 12, 3),
           host("cpu_op", "autograd::backward", 5, 30, thread=200)]  # fmt: skip
    run = pw.load(write(tmp_path / "a.json", ops))
    assert run.events["name"].tolist() == ["aten::linear", "autograd::backward", "aten::relu"]
    assert run.events["stream"].tolist() == ["thread 100", "thread 200", "thread 100"]
    assert run.about["options"] == {"kind": "cpu"}


def test_files_that_are_no_traces_of_devices_are_refused_in_a_line(tmp_path) -> None:
    def refused(path) -> str:
        with pytest.raises(pw.UsageError) as error:
            pw.load(path)
        return str(error.value)

    (tmp_path / "a.json").write_text(
        '{"traceEvents": [{"ph": "X", "name": "paint", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}'
    )
    assert "nothing in it ran on a device, as XProf and PyTorch name them; it names no processes" in refused(
        tmp_path / "a.json"
    )
    (tmp_path / "b.json").write_text("{}")
    assert refused(tmp_path / "b.json") == (
        f"load({str(tmp_path / 'b.json')!r}): this trace cannot be read: it has no traceEvents, so it is no trace."
    )
    (tmp_path / "c.json").write_text('{"traceEvents": [{"ph": "X", "name": "k", "cat": "kernel", "ts": "soon"}]}')
    assert "an event has the time 'soon'" in refused(tmp_path / "c.json")
    (tmp_path / "d.pftrace").write_bytes(b"\n\x00")
    assert "this is Perfetto's own format; traceconv json d.pftrace" in refused(tmp_path / "d.pftrace")
    with pytest.raises(FileNotFoundError):
        pw.load(tmp_path / "none.json")
    with pytest.raises(pw.UsageError, match=r"chip='tpu_v3'\): this is a trace of what ran; chip= is for dumps of XLA"):
        pw.load(write(tmp_path / "e.json", [kernel("gemm", 0, 1.0)]), chip="tpu_v3")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("all_gather.3", "collective"), ("all-reduce-start", "collective"), ("ynn_fusion.1", "compute"),
     ("ncclDevKernel_AllGather_RING_LL(x)", "collective"), ("MemcpyD2H", "host"), ("MemcpyP2P", "prefetch"), ("Memset 3", "compute")],
)  # fmt: skip
def test_an_op_that_is_not_in_the_text_of_its_module_has_the_kind_of_its_name(name, kind) -> None:
    assert op_kind(name) == kind


def test_a_trace_that_pytorch_wrote_opens() -> None:
    run = pw.load(RECORDED / "torch_cpu_step.json.gz")
    assert run.islands == (1,)
    assert {"aten::linear", "aten::relu", "Optimizer.step#SGD.step"} & set(run.events["name"])
    assert np.unique(run.ops["run"]).tolist() == [0, 1, 2], "three steps"
    assert not run.about.get("unread")
    assert 0 < run.summary().utilisation[0] <= 1


def test_collectives_of_two_processes_that_pytorch_recorded() -> None:
    runs = {rank: pw.load(RECORDED / f"gloo_rank{rank}.json.gz") for rank in (0, 1)}
    assert [run.about["trace"]["rank"] for run in runs.values()] == [0, 1]
    assert {"gloo:all_reduce", "c10d::allreduce_", "gloo:all_gather"} <= set(
        runs[0].events.of_kind("collective")["name"]
    )
    found = pw.check_orders(runs)
    assert found
    assert found.gangs == 6
    assert len(pw.compare(*runs.values()).difference) == 22, "both do the same"


def test_a_comparison_says_what_recorded_a_trace() -> None:
    one, two = (pw.load(RECORDED / f"gloo_rank{rank}.json.gz") for rank in (0, 1))
    said = "(real, cpu devices, from PyTorch's profiler)"
    text = pw.compare(one, two).summary_line()
    assert f"gloo_rank0 {said}" in text
    assert f"gloo_rank1 {said}" in text


def test_the_collective_with_which_a_recorded_job_hangs() -> None:
    found = pw.check_orders({rank: pw.load(RECORDED / f"gloo_hanging_rank{rank}.json.gz") for rank in (0, 1)})
    assert not found
    assert found.difference is not None
    assert (found.difference.position, found.difference.odd) == (2, (1,))
    assert "collective 2 of all ranks: on rank 1 it is broadcast" in repr(found)
    assert "on the others (0) it is allreduce" in repr(found)


def test_what_to_chrome_wrote_opens_as_it_was(run, tmp_path) -> None:
    run.to_chrome(tmp_path / "own.json.gz")
    again = pw.load(tmp_path / "own.json.gz")
    assert (again.name, again.islands) == ("own", (1,))
    for name in ("name", "kind", "stream", "start", "end", "run", "why"):
        assert again.events[name].tolist() == run.events[name].tolist(), name


def test_a_large_trace_is_smaller_in_memory_than_its_file(tmp_path) -> None:
    """Ten megabytes of forty thousand kernels: only numbers are kept of each."""
    path, one = (
        tmp_path / "a.json",
        json.dumps(kernel("void gemm<float, 128>(float*)" * 3, 0, 1.0, call=1, grid=[1, 1, 1])),
    )
    with path.open("w") as file:
        file.write('{"traceEvents": [')
        file.writelines(f"{one},\n" for _ in range(40_000))
        file.write(f"{one}]}}")
    assert path.stat().st_size > 10e6
    tracemalloc.start()
    try:
        run = pw.load(path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(run.events) == 40_001
    assert most < 1.5 * path.stat().st_size


def test_odd_events_of_other_writers_are_read_or_named(tmp_path) -> None:
    """Numbers as text, a category that is a list, what begins and never ends, or ends before it begins, a rank as text."""
    begins = kernel("waits", 90.0, 0.0) | {"ph": "B"}
    texts = kernel("text", 50.0, 5.0)
    texts |= {"ts": f"{texts['ts']}", "dur": "5.0"}
    odd = kernel("odd", 60.0, 1.0) | {"cat": ["kernel"]}
    before = kernel("before", 70.0, -2.0)
    path = write(
        tmp_path / "a.json", [kernel("first", 0.0, 1.0), texts, odd, begins, before], distributedInfo={"rank": "3"}
    )
    run = pw.load(path)
    assert run.events["name"].tolist() == ["first", "text", "before"]
    assert run.events["end"] == pytest.approx([1e-6, 55e-6, 70e-6])
    assert run.about["trace"]["rank"] == 3
    unread = {"category \"['kernel']\"": 1, "events without an end": 1, "durations below 0, taken as 0": 1}
    assert run.about["unread"] == unread
    for wrong in ("soon", None, True, 1e300):
        with pytest.raises(pw.UsageError, match="this trace cannot be read: an event has the time"):
            pw.load(write(tmp_path / "b.json", [kernel("first", 0.0, 1.0) | {"ts": wrong}]))
