"""Names of ops in the text of a compiled module: their sources, and their kinds of work."""

from __future__ import annotations

from pathways_nb.cost.hlo.hlo_sources import ops_of

TEXT = """HloModule jit_pw_f, is_scheduled=true

%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %tanh.1 = f32[8]{0} tanh(%p), metadata={op_name="jit(pw_f)/hidden/tanh"}
}

%moved (q: f32[8]) -> f32[8] {
  %q = f32[8]{0} parameter(0)
  ROOT %copy.9 = f32[8]{0} copy(%q)
}

%body (r: f32[8]) -> f32[8] {
  %r = f32[8]{0} parameter(0)
  ROOT %sin.2 = f32[8]{0} sine(%r), metadata={op_name="jit(pw_f)/while/body/sin"}
}

%cond (s: f32[8]) -> pred[] {
  %s = f32[8]{0} parameter(0)
  ROOT %c = pred[] constant(true)
}

%wrapped (t: f32[8]) -> f32[2] {
  %t = f32[8]{0} parameter(0)
  ROOT %rs = f32[2]{0} reduce-scatter(%t), replica_groups={{0,1,2,3}}, dimensions={0}
}

ENTRY %main (a: f32[2]) -> f32[2] {
  %a = f32[2]{0} parameter(0)
  %all-gather.3 = f32[8]{0} all-gather(%a), replica_groups={{0,1,2,3}}, metadata={op_name="jit(pw_f)/g/all_gather"}
  %tanh_fusion = f32[8]{0} fusion(%all-gather.3), kind=kLoop, calls=%fused, metadata={op_name="jit(pw_f)/hidden/tanh"}
  %copy_fusion = f32[8]{0} fusion(%tanh_fusion), kind=kLoop, calls=%moved
  %copy-start.1 = (f32[8]{0}, f32[8]{0}) copy-start(%copy_fusion)
  %while.7 = f32[8]{0} while(%copy_fusion), condition=%cond, body=%body, metadata={op_name="jit(pw_f)/while"}
  %rs-start = ((f32[8]{0}), f32[2]{0}) async-start(%while.7), calls=%wrapped, metadata={op_name="jit(pw_f)/s/rs"}
  ROOT %rs-done = f32[2]{0} async-done(%rs-start), calls=%wrapped
}
"""


def test_each_op_has_its_name_stack_and_its_kind() -> None:
    ops = {name: one[:2] for name, one in ops_of(TEXT).items()}
    assert ops["all-gather.3"] == ("jit(pw_f)/g/all_gather", "collective")
    assert ops["tanh_fusion"] == ("jit(pw_f)/hidden/tanh", "compute")
    assert ops["copy_fusion"] == ops["copy-start.1"] == ("", "copy")
    assert ops["rs-start"] == ("jit(pw_f)/s/rs", "collective")
    assert ops["rs-done"] == ("", "collective")


def test_each_op_says_what_it_does() -> None:
    ops = ops_of(TEXT)
    assert ops["all-gather.3"].work == "all-gather of 32 B, 1 group of 4"
    assert ops["rs-start"].work == "reduce-scatter of 32 B, 1 group of 4"
    assert ops["tanh_fusion"].work == "64 B"


def test_a_loop_names_the_ops_that_it_runs() -> None:
    ops = ops_of(TEXT)
    assert ops["while.7"].runs == ("r", "sin.2")
    assert ops["sin.2"].source == "jit(pw_f)/while/body/sin"
    assert ops["tanh_fusion"].runs == (), "a fusion runs as one"
