"""Dumps of XLA that somebody brings: opened as runs, and refused in words that say what to do."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

import pathways_nb as pw
from pathways_datasets import recorded
from pathways_nb.results.dump_files import modules_in
from pathways_nb.trace.op_hiding import exposed_by_line, exposed_seconds, hidden_behind

RECORDED = "h200_cudnn_6x4096_full"
STEM = "module_0123.jit_step.sm_9.0a_gpu_after_optimizations"
SMALL = """HloModule jit_init, is_scheduled=true, num_partitions=8

ENTRY %main (p: f32[1024,1024]) -> f32[1024,1024] {
  %p = f32[1024,1024]{1,0} parameter(0)
  %s = f32[1024,1024]{1,0} all-reduce(%p), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add, metadata={op_name="jit(init)/psum"}
  ROOT %r = f32[1024,1024]{1,0} negate(%s), metadata={op_name="jit(init)/neg"}
}
"""
H200 = 'gpu_device_info { device_memory_size: 150000000000 }\ndevice_description_str: "NVIDIA H200"\n'


@pytest.fixture
def dump(tmp_path) -> Path:
    """A dump of two programs: a recorded step with its memory, and a small one without."""
    for name, ending in {
        "hlo": "",
        "buffers": "-buffer-assignment",
        "memory": "-memory-usage-report",
        "live": "-live-range",
    }.items():
        (tmp_path / f"{STEM}{ending}.txt").write_bytes(recorded(f"{RECORDED}.{name}.txt"))
    (tmp_path / "module_0123.jit_step.gpu_target_config.pbtxt").write_text(H200)
    (tmp_path / "module_0007.jit_init.sm_9.0a_gpu_after_optimizations.txt").write_text(SMALL)
    (tmp_path / "module_0007.jit_init.gpu_target_config.pbtxt").write_text(H200)
    (tmp_path / "module_0007.jit_init.before_optimizations.txt").write_text("HloModule jit_init\n")
    return tmp_path


def test_the_longest_schedule_of_a_dump_opens_and_all_are_listed(dump):
    run = pw.load(dump)
    assert (run.name, run.islands) == ("jit_step", (1,))
    assert [name for name, _ in run.about["opened"]["modules"]] == ["module_0123.jit_step", "module_0007.jit_init"]
    assert run.summary().makespan == pytest.approx(run.ops["end"].max())
    assert run.events.labels[0].basis == (
        "GPU compiler of module_0123.jit_step.sm_9.0a_gpu_after_optimizations.txt; compiled text 2939b623923037ee; "
        "0.65 of the FLOP/s in products, 0.5 in attention, 0.85 of HBM; in the compiler's order"
    )
    assert set(run.events["quality"]) == {"simulated"}
    assert run.summary_line().startswith(
        "1 × gpu_h200_sxm · predicted 173 ms in the compiler's order (all hidden 173 ms … nothing hidden 173 ms) · "
        "memory 23.6 GB (arguments 18.8 GB, results 1.36 KB, temporaries 4.71 GB) · "
        "2 modules (module= chooses): module_0123.jit_step 173 ms, module_0007.jit_init "
    )


def test_its_memory_over_time_peaks_where_xla_says(dump):
    (held,) = pw.load(dump).memory("category")
    assert held.peak.bytes == 23_553_967_620, "recorded from compiled.memory_analysis()"
    assert set(held.names) == {"arguments", "results", "activations", "gradients", "temporaries"}


@pytest.mark.parametrize("module", [7, "jit_init", "module_0007.jit_init"])
def test_another_program_is_chosen_by_its_name_or_number(dump, module):
    run = pw.load(dump, module=module)
    assert run.name == "jit_init"
    assert "8 × gpu_h200_sxm" in run.summary_line()
    assert "exposed communication" in run.summary_line()
    assert [(one.kind, one.work) for one in run.ops] == [
        ("collective", "all-reduce of 4.19 MB, 1 group of 8"),
        ("wait", "all-reduce of 4.19 MB, 1 group of 8"),
        ("compute", "8.39 MB"),
    ]


def test_a_run_of_a_dump_is_saved_and_loaded(dump, tmp_path):
    run = pw.load(dump)
    run.save(tmp_path / "a.run")
    found = pw.load(tmp_path / "a.run")
    assert list(found.ops) == list(run.ops)
    assert found.summary_line() == run.summary_line()


@pytest.mark.parametrize("packed", [False, True])
def test_one_text_opens_for_the_chip_that_is_named(tmp_path, packed):
    path = tmp_path / ("step.txt.gz" if packed else "step.txt")
    path.write_bytes(gzip.compress(SMALL.encode()) if packed else SMALL.encode())
    assert "8 × tpu_v5p" in pw.load(path, chip="tpu_v5p").summary_line()
    assert "8 × gpu_h100_sxm" in pw.load(str(path), chip="gpu_h100_sxm").summary_line()


CHIPS = {
    'device_memory_size: 85899345920 name: "NVIDIA H100 80GB HBM3"': "gpu_h100_sxm",
    'device_memory_size: 151397597184 device_description_str: "NVIDIA H200"': "gpu_h200_sxm",
    'device_memory_size: 42331013120 device_description_str: "NVIDIA A100-SXM4-40GB"': "gpu_a100_40",
    'device_memory_size: 85100068864 device_description_str: "NVIDIA A100-SXM4-80GB"': "gpu_a100_80",
    'device_memory_size: 85100068864 device_description_str: "NVIDIA H100 PCIe"': None,
    'device_memory_size: 1 device_description_str: "NVIDIA RTX 6000"': None,
}


@pytest.mark.parametrize(("said", "chip"), CHIPS.items())
def test_a_gpu_is_known_by_its_name_and_memory(tmp_path, said, chip):
    (tmp_path / f"{STEM}.txt").write_text(SMALL)
    (tmp_path / "module_0123.jit_step.gpu_target_config.pbtxt").write_text(said)
    assert modules_in(tmp_path)[0].chip_name == chip


@pytest.mark.parametrize(
    ("said", "chip"),
    [("version: TPU_VERSION_VIPERFISH", "tpu_v5p"), ('version: TPU_VERSION_VIPERFISH\n  variant: "lite"', "tpu_v5e"),
     ("version: TPU_VERSION_GHOSTLITE", "tpu_v6e"), ("version: TPU_VERSION_PUFFERFISH", "tpu_v4")],
)  # fmt: skip
def test_of_a_tpus_dump_the_text_with_buffers_assigned_is_read(tmp_path, said, chip):
    stem = "module_0000.jit_step.cl_933."
    for ending in ("after_optimizations", "after_optimizations_after_buffer_assignment",
                   "after_optimizations_before_buffer_assignment"):  # fmt: skip
        (tmp_path / f"{stem}{ending}.txt").write_text(SMALL)
    (tmp_path / f"{stem}target_arguments.txt").write_text(f"tpu_topology_args {{\n  {said}\n}}")
    (module,) = modules_in(tmp_path)
    assert module.path.name == f"{stem}after_optimizations_after_buffer_assignment.txt"
    assert (module.name, module.chip_name, module.kind) == ("module_0000.jit_step", chip, "TPU")
    assert pw.load(tmp_path).name == "jit_init", "as its text says"


def test_a_dump_of_the_cpu_says_whose_schedule_it_is(tmp_path):
    (tmp_path / "module_0010.jit_step.cpu_after_optimizations.txt").write_text(SMALL)
    found = pw.load(tmp_path, chip="gpu_h100_sxm").summary_line()
    assert "the schedule is that of the CPU's compiler, the times are those of gpu_h100_sxm" in found


def test_a_text_that_cannot_be_read_does_not_hide_the_others(dump):
    (dump / "module_0009.jit_cut.sm_9.0a_gpu_after_optimizations.txt").write_text(SMALL.replace("ENTRY", "EXIT"))
    said = pw.load(dump).summary_line()
    assert "1 program cannot be read, the first because load(" in said
    assert (
        "module_0009.jit_cut.sm_9.0a_gpu_after_optimizations.txt cannot be read: This is no compiled XLA module" in said
    )
    for module in ("jit_cut", 9):
        assert "cannot be read: This is no compiled XLA module" in refused(dump, module=module), "it is asked for"


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*step\.txt'"):
        pw.load(tmp_path / "step.txt")


def sending(target: str = "") -> str:
    """A text that sends an array to other slices."""
    said = (
        f'frontend_attributes={{_xla_megascale_target="{target}",_xla_megascale_transfer_type="ALL_REDUCE"}}'
        if target
        else "is_host_transfer=true"
    )
    sends = (
        "  %t = token[] after-all()\n"
        f"  %x = (f32[1024,1024]{{1,0}}, u32[], token[]) send(%s, %t), channel_id=3, {said}\n"
        "  %y = token[] send-done(%x), channel_id=3\n  ROOT"
    )
    return SMALL.replace("  ROOT", sends)


def test_a_dump_that_sends_between_slices_says_how_many_are_assumed_if_its_text_does_not(tmp_path):
    path = tmp_path / "step.txt"
    path.write_text(sending())
    run = pw.load(path, chip="tpu_v5e")
    assert "it sends between slices, whose number its text does not say: 2 are assumed" in run.summary_line()
    assert set(run.ops["kind"]) == {"compute", "collective", "dcn", "wait"}
    path.write_text(sending("{1,2,3,4}x{0:1}"))
    run = pw.load(path, chip="tpu_v5e")
    assert "assumed" not in run.summary_line()
    assert "dcn" in set(run.ops["kind"])
    path.write_text(sending("{1,2,3}x{0:1}"))
    assert "its 8 devices do not divide into the 3 slices that it sends to" in refused(path, chip="tpu_v5e")


def refused(path: Path, **asked: object) -> str:
    """What ``pw.load`` says."""
    with pytest.raises(pw.UsageError) as error:
        pw.load(path, **asked)  # type: ignore[arg-type]
    return str(error.value).replace(str(path), "PATH")


HOW = "XLA_FLAGS='--xla_dump_to=FOLDER --xla_dump_hlo_as_text' dumps it, and compiled.as_text() returns it"
FOLDERS = {
    (): f"load('PATH'): this folder is empty; a dump of XLA has a text of each scheduled program: {HOW}.",
    (
        "m.hlo.pb",
        "m.txt",
    ): f"load('PATH'): this folder has programs as protos only, such as m.hlo.pb; text is read: {HOW}.",
    ("m.html",): f"load('PATH'): this folder has drawings of programs only, such as m.html; text is read: {HOW}.",
    ("module_0001.f.before_optimizations.txt",): (
        "load('PATH'): this folder has programs from before optimizations only, such as "
        "module_0001.f.before_optimizations.txt, which have no schedule yet; the text after optimizations is read: let "
        f"the compiler end, {HOW}."
    ),
    ("notes.md", "a.csv"): (
        f"load('PATH'): this folder is no dump of XLA: none of its 2 files ends in after_optimizations.txt; {HOW}."
    ),
}


@pytest.mark.parametrize(("files", "said"), FOLDERS.items(), ids=lambda value: value[0] if value else "empty")
def test_a_folder_without_a_schedule_is_refused(tmp_path, files, said):
    for name in files:
        (tmp_path / name).touch()
    assert refused(tmp_path) == said


TEXTS = {
    "a.html": ("<!DOCTYPE html><svg/>", f"load('PATH'): this is a drawing of a program as HTML; its text is read: {HOW}."),
    "a.pb": ("\n\x08jit_step\x00", f"load('PATH'): this is no text, but a proto or another binary file; text is read: {HOW}."),
    "a.mlir": (
        "module @jit_step {\n}",
        "load('PATH'): a compiled program begins with 'HloModule', this file with 'module @jit_step {'. It is a lowered "
        f"program: compile it first. {HOW}.",
    ),
    "a.txt": (
        "HloModule jit_step, entry_computation_layout={()->f32[]}\n\nENTRY main {\n}\n",
        "load('PATH'): this program has no schedule (its first line does not say is_scheduled=true), as before "
        f"optimizations; the text after optimizations is read: {HOW}.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_another_kind_of_file_is_refused(tmp_path, name):
    path = tmp_path / name
    path.write_text(TEXTS[name][0])
    assert refused(path, chip="gpu_h100_sxm") == TEXTS[name][1]


def test_a_text_without_a_chip_is_refused_with_those_that_are_known(tmp_path):
    path = tmp_path / "step.txt"
    path.write_text(SMALL)
    said = refused(path)
    assert said.startswith(
        "load('PATH'): step.txt does not say which chip it is for; add chip=, one of tpu_v2, tpu_v3,"
    )
    of_cpu = tmp_path / "module_0000.jit_step.cpu_after_optimizations.txt"
    of_cpu.write_text(SMALL)
    assert refused(of_cpu).startswith(
        f"load('PATH'): {of_cpu.name} was compiled for CPUs, and its schedule is priced for a chip; add chip=, one of tpu"
    )


def test_a_damaged_text_is_refused(tmp_path):
    path = tmp_path / "step.txt"
    path.write_text(SMALL.replace("ENTRY", "EXIT"))
    assert refused(path, chip="tpu_v5p") == (
        "load('PATH'): step.txt cannot be read: This is no compiled XLA module: it has no line that begins with ENTRY."
    )


def test_a_text_that_ends_in_the_middle_is_refused(tmp_path):
    path = tmp_path / "step.txt"
    path.write_text(SMALL[: SMALL.index("  ROOT")])
    said = "load('PATH'): this text ends in the middle of the program; dump or copy it again, whole."
    assert refused(path, chip="tpu_v5p") == said


@pytest.mark.parametrize("kept", [60, 5])
def test_a_damaged_compressed_text_is_refused(tmp_path, kept):
    path = tmp_path / "step.txt.gz"
    path.write_bytes(gzip.compress(SMALL.encode())[:kept] + b"x" * 40)
    assert re.fullmatch(
        r"load\('PATH'\): this compressed file is damaged \(.*\); copy it again\.", refused(path, chip="tpu_v5p")
    )


def test_a_schedule_of_another_kind_of_chip_says_so(tmp_path):
    path = tmp_path / "module_0007.jit_init.sm_9.0a_gpu_after_optimizations.txt"
    path.write_text(SMALL)
    note = "the schedule is that of the GPU's compiler, the times are those of tpu_v5p"
    assert note in pw.load(path, chip="tpu_v5p").about["opened"]["notes"]
    assert pw.load(path, chip="gpu_h100_sxm").about["opened"]["notes"] == []


def test_a_program_that_is_not_there_is_refused_with_those_that_are(dump):
    assert refused(dump, module="jit_stop") == (
        "load('PATH'): there is no program module='jit_stop'; there are module_0123.jit_step, module_0007.jit_init."
    )
    assert "module=9; there are" in refused(dump, module=9)


@pytest.mark.parametrize("asked", [{"chip": "tpu_v5p"}, {"module": 1}])
def test_a_saved_run_has_no_chip_or_module_to_choose(tmp_path, asked):
    pw.Run("a", (1,)).save(tmp_path / "a.run")
    ((name, value),) = asked.items()
    assert refused(tmp_path / "a.run", **asked) == (
        f"load('PATH', {name}={value!r}): this is a saved run; {name}= is for dumps of XLA."
    )


def test_exposed_communication_is_told_by_line(tmp_path):
    path = tmp_path / "step.txt"
    path.write_text(SMALL)
    ops = pw.load(path, chip="gpu_h100_sxm").ops
    reduced = ops.of(kind="collective")
    assert dict(exposed_by_line(ops)) == {"jit(init)/psum": pytest.approx(reduced.seconds)}
    assert hidden_behind(ops, exposed_seconds(ops)) == ["exposed", "", ""]
    assert re.search(
        r"exposed communication [\d.]+ µs: jit\(init\)/psum", pw.load(path, chip="gpu_h100_sxm").summary_line()
    )
