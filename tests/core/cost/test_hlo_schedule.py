"""Schedules that compilers for GPUs and TPUs write: every way of writing that once was read wrongly is a case."""

from __future__ import annotations

import pytest

from pathways_datasets import recorded, recorded_files
from pathways_nb.cost.hlo.hlo_schedule import LaunchSchedule, schedule_of
from pathways_nb.cost.hlo.hlo_text import parse
from pathways_nb.cost.hlo.hlo_work import work_of


def schedule(body: str, before: str = "", devices: int = 8) -> LaunchSchedule:
    """The schedule of an entry with these lines, after other computations."""
    return schedule_of(parse(f"HloModule m\n\n{before}\n\nENTRY %main (p: f32[8]) -> f32[8] {{\n{body}\n}}\n"), devices)


def test_a_product_of_a_gpus_library_counts_its_contracted_dimension():
    (action,) = schedule(
        "  %a = bf16[4096,2048]{1,0} parameter(0)\n"
        "  %b = bf16[2048,6144]{1,0} parameter(1)\n"
        '  ROOT %g = (bf16[4096,6144]{1,0}, s8[4194304]{0}) custom-call(%a, %b), custom_call_target="__cublas$lt$matmul", '
        'backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],'
        '"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]}}}'
    ).actions
    assert action.work.flops == 2 * 4096 * 2048 * 6144
    assert action.work.dtype == "bf16"
    assert action.work.bytes == 2 * (4096 * 2048 + 2048 * 6144 + 4096 * 6144), "scratch memory of s8 is not moved"


@pytest.mark.parametrize(
    ("target", "mask", "share"),
    [("__cudnn$fmhaSoftmax", "CAUSAL", 0.5), ("__cudnn$fmhaSoftmax", "NO_MASK", 1.0),
     ("__cudnn$fmhaSoftmaxBackward", "CAUSAL", 1.25)],
)  # fmt: skip
def test_attention_of_a_gpus_library_counts_what_its_mask_keeps(target, mask, share):
    (action,) = schedule(
        "  %q = bf16[2,4096,32,128]{3,2,1,0} parameter(0)\n  %k = bf16[2,4096,8,128]{3,2,1,0} parameter(1)\n"
        f'  ROOT %o = (bf16[2,32,4096,128]{{3,1,2,0}}, f32[2,32,4096]{{2,1,0}}) custom-call(%q, %k, %k), custom_call_target="{target}", '
        f'backend_config={{"cudnn_fmha_backend_config":{{"mask_type":"{mask}"}}}}'
    ).actions
    assert action.work.attention == share * 4 * 2 * 32 * 4096 * 4096 * 128
    assert action.work.flops == 0


# A TPU writes products as convolutions. Each row: shapes, window, labels, and the FLOPs of the product that it is.
CONVOLUTIONS = [
    ("bf16[6,2048,8192]", "bf16[6,2048,4096]", "bf16[4096,8192,1]", "size=1", "0bf_io0->0bf", 2 * 6 * 2048 * 4096 * 8192),
    # a weight's gradient: the batch of sequences is a spatial dimension
    ("bf16[4096,8192,1]", "bf16[6,2048,4096]", "bf16[6,2048,8192]", "size=6", "0fb_0io->bf0", 2 * 6 * 2048 * 4096 * 8192),
    # a product for each of 2 × 16 heads: the dilation makes taps that meet nothing
    ("bf16[2,16,64,64]", "bf16[2,16,64,32]", "bf16[2,16,64,32]", "size=2x16 stride=1x15 lhs_dilate=2x16",
     "01bf_01oi->01bf", 2 * 2 * 16 * 64 * 64 * 32),
    # labels that name the second spatial dimension first
    ("bf16[2,64,2,32]", "bf16[2,64,128,1]", "bf16[2,32,128,1]", "size=1x2 pad=0_0x1_1 rhs_reversal=0x1",
     "0bf1_1oi0->0b1f", 2 * 2 * 64 * 2 * 32 * 128),
]  # fmt: skip


@pytest.mark.parametrize(("out", "left", "right", "window", "labels", "flops"), CONVOLUTIONS)
def test_a_product_that_is_written_as_a_convolution_counts_as_the_product(out, left, right, window, labels, flops):
    (action,) = schedule(
        f"  %a = {left}{{0}} parameter(0)\n  %b = {right}{{0}} parameter(1)\n"
        f"  ROOT %c = {out}{{0}} convolution(%a, %b), window={{{window}}}, dim_labels={labels}"
    ).actions
    assert action.work.flops == flops


@pytest.mark.parametrize(
    ("target", "out", "left", "right"),
    [
        ("convForward", "[16,48,48,512]", "[16,48,48,256]", "[512,3,3,256]"),
        ("convBackwardInput", "[16,48,48,256]", "[16,48,48,512]", "[512,3,3,256]"),
        ("convBackwardFilter", "[512,3,3,256]", "[16,48,48,256]", "[16,48,48,512]"),
    ],
)
def test_a_convolution_of_a_gpus_library_counts_as_in_its_forward_pass(target, out, left, right):
    (action,) = schedule(
        f"  %a = bf16{left}{{3,2,1,0}} parameter(0)\n  %b = bf16{right}{{3,2,1,0}} parameter(1)\n"
        f"  ROOT %c = (bf16{out}{{3,2,1,0}}, u8[0]{{0}}) custom-call(%a, %b), window={{size=3x3 pad=1_1x1_1}}, "
        f'dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn${target}"'
    ).actions
    inside = (3 * 48 - 2) ** 2  # at an edge one tap of three meets padding
    assert (action.work.flops, action.work.dtype) == (2 * 16 * inside * 256 * 512, "bf16")


def test_a_slice_of_a_stacked_weight_is_read_and_not_the_whole():
    before = """%fused (p0: bf16[32,64,64], p1: s32[]) -> bf16[64,64] {
  %p0 = bf16[32,64,64]{2,1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %slice = bf16[1,64,64]{2,1,0} dynamic-slice(%p0, %p1, %p1, %p1), dynamic_slice_sizes={1,64,64}
  ROOT %r = bf16[64,64]{1,0} bitcast(%slice)
}"""
    (action,) = schedule(
        "  %w = bf16[32,64,64]{2,1,0} parameter(0)\n  %i = s32[] parameter(1)\n"
        "  ROOT %f = bf16[64,64]{1,0} fusion(%w, %i), kind=kLoop, calls=%fused",
        before,
    ).actions
    assert action.work.bytes == 2 * 64 * 64 * 2 + 4


def test_an_update_in_place_moves_the_update():
    before = """%fused (p0: f32[32,64], p1: f32[1,64], p2: s32[]) -> f32[32,64] {
  %p0 = f32[32,64]{1,0} parameter(0)
  %p1 = f32[1,64]{1,0} parameter(1)
  %p2 = s32[] parameter(2)
  ROOT %r = f32[32,64]{1,0} dynamic-update-slice(%p0, %p1, %p2, %p2)
}"""
    (action,) = schedule(
        "  %a = f32[32,64]{1,0} parameter(0)\n  %b = f32[1,64]{1,0} parameter(1)\n  %i = s32[] parameter(2)\n"
        "  ROOT %f = f32[32,64]{1,0} fusion(%a, %b, %i), kind=kLoop, calls=%fused",
        before,
    ).actions
    assert action.work.bytes == 2 * 4 * 64 + 4


def test_what_a_tpu_keeps_in_its_vector_memory_is_not_moved():
    (action,) = schedule(
        "  %a = bf16[64,64]{1,0:T(8,128)(2,1)S(1)} parameter(0)\n  ROOT %f = bf16[64,64]{1,0:T(8,128)(2,1)} negate(%a)"
    ).actions
    assert action.work.bytes == 2 * 64 * 64


def test_a_collective_goes_on_until_the_instruction_that_ends_it():
    found = schedule(
        "  %a = bf16[8,64]{1,0} parameter(0)\n"
        "  %s = (bf16[8,64]{1,0}, bf16[64,64]{1,0}) all-gather-start(%a), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}\n"
        "  %n = bf16[8,64]{1,0} negate(%a)\n"
        "  ROOT %d = bf16[64,64]{1,0} all-gather-done(%s)"
    ).actions
    assert [(one.queue, one.role, one.of) for one in found] == [
        ("network", "start", -1), ("compute", "run", -1), ("compute", "done", 0)]  # fmt: skip
    assert found[0].exchange.bytes == 2 * 64 * 64
    assert found[0].exchange.size == 8


def test_a_collective_without_a_start_holds_up_the_device():
    (action,) = schedule(
        "  %a = f32[64]{0} parameter(0)\n"
        "  ROOT %r = f32[64]{0} all-reduce(%a), channel_id=1, replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}, to_apply=%add"
    ).actions
    assert (action.queue, action.role, action.exchange.size) == ("network", "run", 4)


ASYNC = """%begin (p0: bf16[8,64]) -> (bf16[8,64], bf16[64,64]) {
  %p0 = bf16[8,64]{1,0} parameter(0)
  %g0 = bf16[64,64]{1,0} all-gather(%p0), channel_id=7, replica_groups=[1,8]<=[8], dimensions={0}
  ROOT %c0 = (bf16[8,64]{1,0}, bf16[64,64]{1,0}) custom-call(%g0), custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion.1 (p0: bf16[8,64], p1: bf16[64,64], p2: bf16[64,64]) -> (bf16[64,64], bf16[64,64]) {
  %p0 = bf16[8,64]{1,0} parameter(0)
  %p1 = bf16[64,64]{1,0} parameter(1)
  %p2 = bf16[64,64]{1,0} parameter(2)
  %g1 = bf16[64,64]{1,0} all-gather(%p0), channel_id=7, replica_groups=[1,8]<=[8], dimensions={0}
  %conv = bf16[64,64]{1,0} dot(%p2, %p2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %t = (bf16[64,64]{1,0}, bf16[64,64]{1,0}) tuple(%conv, %p1)
}

%end (p0: bf16[8,64], p1: bf16[64,64]) -> bf16[64,64] {
  %p0 = bf16[8,64]{1,0} parameter(0)
  %p1 = bf16[64,64]{1,0} parameter(1)
  %g2 = bf16[64,64]{1,0} all-gather(%p0), channel_id=7, replica_groups=[1,8]<=[8], dimensions={0}
  ROOT %c2 = bf16[64,64]{1,0} custom-call(%p1, %g2), custom_call_target="AsyncCollectiveDone"
}"""


def test_one_collective_in_three_fusions_counts_once_and_the_work_between_counts_too():
    found = schedule(
        "  %a = bf16[8,64]{1,0} parameter(0)\n  %w = bf16[64,64]{1,0} parameter(1)\n"
        "  %s = (bf16[8,64]{1,0}, bf16[64,64]{1,0}) fusion(%a), kind=kCustom, calls=%begin\n"
        "  %m = (bf16[64,64]{1,0}, bf16[64,64]{1,0}) fusion(%a, %w, %w), kind=kOutput, calls=%async_collective_fusion.1\n"
        "  ROOT %d = bf16[64,64]{1,0} fusion(%a, %w), kind=kCustom, calls=%end",
        ASYNC,
    ).actions
    assert [(one.queue, one.role) for one in found] == [("network", "start"), ("compute", "run"), ("compute", "done")]
    assert found[1].work.flops == 2 * 64**3
    assert found[2].of == 0
    assert sum(one.exchange is not None for one in found) == 1


def test_an_all_reduce_that_is_fused_with_the_slice_of_its_part_is_a_reduce_scatter():
    before = """%all-reduce-scatter (input: f32[64,64]) -> f32[8,64] {
  %input = f32[64,64]{1,0} parameter(0)
  %all = f32[64,64]{1,0} all-reduce(%input), channel_id=1, replica_groups=[1,8]<=[8], to_apply=%add
  %i = u32[] partition-id()
  ROOT %part = f32[8,64]{1,0} dynamic-slice(%all, %i, %i), dynamic_slice_sizes={8,64}
}"""
    (action,) = schedule(
        "  %a = f32[64,64]{1,0} parameter(0)\n  ROOT %r = f32[8,64]{1,0} fusion(%a), kind=kCustom, calls=%all-reduce-scatter",
        before,
    ).actions
    assert (action.exchange.kind, action.exchange.bytes, action.role) == ("reduce-scatter", 4 * 64 * 64, "run")


def loop(config: str, step: str, begin: str) -> LaunchSchedule:
    """A loop of eight passes, or what its numbers say."""
    before = f"""%body (b: (u32[], f32[64])) -> (u32[], f32[64]) {{
  %b = (u32[], f32[64]{{0}}) parameter(0)
  %n = u32[] get-tuple-element(%b), index=0
  %m = u32[] copy(%n)
  %one = u32[] constant({step})
  %next = u32[] add(%m, %one)
  %x = f32[64]{{0}} get-tuple-element(%b), index=1
  %y = f32[64]{{0}} negate(%x)
  ROOT %r = (u32[], f32[64]{{0}}) tuple(%next, %y)
}}

%condition (c: (u32[], f32[64])) -> pred[] {{
  %c = (u32[], f32[64]{{0}}) parameter(0)
  %k = u32[] get-tuple-element(%c), index=0
  %limit = u32[] constant(8)
  ROOT %less = pred[] compare(%k, %limit), direction=LT
}}"""
    return schedule(
        f"  %a = f32[64]{{0}} parameter(0)\n  %zero = u32[] {begin}\n  %t = (u32[], f32[64]{{0}}) tuple(%zero, %a)\n"
        f"  ROOT %w = (u32[], f32[64]{{0}}) while(%t), condition=%condition, body=%body{config}",
        before,
    )


@pytest.mark.parametrize(
    ("config", "step", "begin", "trips"),
    [("", "1", "constant(0)", 8), ("", "2", "constant(0)", 4), ("", "3", "constant(0)", 3), ("", "1", "constant(5)", 3),
     (', backend_config={"known_trip_count":{"n":"39"}}', "1", "constant(0)", 39)],
)  # fmt: skip
def test_a_loop_runs_as_often_as_its_counter_says(config, step, begin, trips):
    found = loop(config, step, begin)
    assert [one.trips for one in found.actions if one.role == "loop"] == [trips]
    assert [times for one, times in found.runs() if one.name == "y"] == [trips]
    assert found.notes == ()


def test_a_loop_that_begins_at_an_unknown_number_is_counted_once_and_says_so():
    found = loop("", "1", "parameter(1)")
    assert found.notes == ("the loop w runs an unknown number of times and is counted once",)


def test_an_element_of_a_tuple_may_be_written_with_its_number():
    before = """%body (b: (s32[], f32[64])) -> (s32[], f32[64]) {
  %b = (s32[], f32[64]{0}) parameter(0)
  %one = s32[] constant(1)
  %n = s32[]{:S(6)} copy(%b#0)
  %next = s32[] add(%n, %one)
  %y = f32[64]{0} negate(%b#1)
  ROOT %r = (s32[], f32[64]{0}) tuple(%next, %y)
}

%condition (c: (s32[], f32[64])) -> pred[] {
  %limit = s32[] constant(12)
  %c = (s32[], f32[64]{0}) parameter(0)
  ROOT %less = pred[] compare(%c#0, %limit), direction=LT
}"""
    found = schedule(
        "  %a = f32[64]{0} parameter(0)\n  %zero = s32[] constant(0)\n  %t = (s32[], f32[64]{0}) tuple(%zero, %a)\n"
        "  ROOT %w = (s32[], f32[64]{0}) while(%t), condition=%condition, body=%body",
        before,
    )
    assert found.notes == ()
    assert [(one.name, times, one.work.bytes) for one, times in found.runs() if one.name == "y"] == [("y", 12, 512)]


def test_a_computation_of_a_sparse_core_ends_with_the_name_of_its_thread():
    text = """HloModule jit_f, is_scheduled=true

%other (p: f32[8]) -> f32[8] {
  ROOT %p = f32[8]{0} parameter(0)
}, execution_thread="sparsecore"

%async_computation (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %call = f32[8]{0} call(%p), to_apply=%other
}, execution_thread="sparsecore"

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %start = ((f32[8]{0}), f32[8]{0}) async-start(%a), async_execution_thread="sparsecore", calls=%async_computation
  ROOT %done = f32[8]{0} async-done(%start)
}
"""
    module = parse(text)
    assert set(module.computations) == {"other", "async_computation", "main"}
    assert [(one.name, one.role) for one in schedule_of(module, 1).actions] == [("start", "start"), ("done", "done")]


def test_metadata_with_line_breaks_belongs_to_its_instruction():
    (action,) = schedule(
        "  %q = bf16[2,16,2048,128]{3,2,1,0} parameter(0)\n"
        '  ROOT %f = bf16[2,16,2048,128]{3,2,1,0} custom-call(%q, %q, %q), custom_call_target="tpu_custom_call", '
        'frontend_attributes={kernel_metadata={\n"xprof_metadata":"{\\"block_q\\": 512}"\n}}, '
        'metadata={op_name="jit(step)/splash_mha_fwd_residuals/pallas_call" stack_frame_id=42}, backend_config={"custom_call_config":{"body":"x"}}'
    ).actions
    assert action.work.attention == 0.5 * 4 * 2 * 16 * 2048 * 2048 * 128
    assert action.source == "jit(step)/splash_mha_fwd_residuals/pallas_call"


def test_of_what_lies_in_the_hosts_memory_a_slice_moves():
    found = schedule(
        "  %a = bf16[32,6,64]{2,1,0:S(5)} parameter(0)\n  %i = s32[] parameter(1)\n"
        "  %s = ((bf16[32,6,64]{2,1,0:S(5)}, s32[]), bf16[1,6,64]{2,1,0}, u32[]{:S(2)}) async-start(%a, %i), calls=%fetch\n"
        "  ROOT %d = bf16[1,6,64]{2,1,0} async-done(%s)",
        "%fetch (p: bf16[32,6,64], q: s32[]) -> bf16[1,6,64] {\n  %p = bf16[32,6,64]{2,1,0:S(5)} parameter(0)\n"
        "  %q = s32[] parameter(1)\n  ROOT %r = bf16[1,6,64]{2,1,0} dynamic-slice(%p, %q, %q, %q)\n}",
    ).actions
    assert [(one.queue, one.role, one.work.bytes) for one in found] == [
        ("host", "start", 2 * 6 * 64),
        ("compute", "done", 0),
    ]


def test_a_transfer_between_slices_counts_where_it_is_sent():
    found = schedule(
        "  %a = bf16[64,64]{1,0} parameter(0)\n  %t = token[] after-all()\n"
        "  %s = (bf16[64,64]{1,0}, u32[], token[]) send(%a, %t), channel_id=3, is_host_transfer=true\n"
        "  %r = (bf16[64,64]{1,0}, u32[], token[]) recv(%t), channel_id=4, is_host_transfer=true\n"
        "  %sd = token[] send-done(%s), channel_id=3\n"
        "  ROOT %rd = (bf16[64,64]{1,0}, token[]) recv-done(%r), channel_id=4"
    ).actions
    assert [(one.queue, one.role, one.work.bytes) for one in found] == [
        ("dcn", "start", 2 * 64 * 64), ("dcn", "start", 0), ("compute", "done", 0), ("compute", "done", 0)]  # fmt: skip


@pytest.mark.parametrize(("pairs", "size"), [("{{0,0},{1,1}}", 1), ("{{0,0},{1,0}}", 2)])
def test_a_permutation_in_which_each_device_sends_to_itself_has_groups_of_one(pairs, size):
    (action,) = schedule(
        "  %p = f32[8]{0} parameter(0)\n"
        f"  ROOT %c = f32[8]{{0}} collective-permute(%p), channel_id=1, source_target_pairs={pairs}",
        devices=2,
    ).actions
    assert action.exchange is not None
    assert action.exchange.size == size


@pytest.mark.parametrize("name", [name for name in recorded_files() if name.endswith("cudnn_6x4096_full.hlo.txt")])
def test_a_step_that_was_dumped_on_a_gpu_has_the_flops_of_its_formula(name):
    module = parse(recorded(name).decode())
    tokens, width, hidden, layers = 2 * 4096, 4096, 14336, 6
    block = width * width * 2 + 2 * width * 1024 + 3 * width * hidden
    # Full recomputation leaves out the last product of each block, which no gradient needs.
    products = 2 * tokens * (layers * (4 * block - hidden * width) + 3 * 32000 * width)
    attention = 0.5 * 4 * tokens * 4096 * width * (2 + 2.5) * layers
    found = schedule_of(module, 1)
    assert found.flops == pytest.approx(products + attention, rel=2e-3)
    entry = module.computations[module.entry]
    assert all(work_of(module, entry, one).bytes >= 0 for one in entry.instructions.values() if one.opcode == "fusion")
