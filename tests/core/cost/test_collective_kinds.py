"""A kind of collective is one row of one table: a row that is added is known everywhere, and nothing else lists kinds."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

from pathways_nb.cost.collectives.kinds import KINDS
from pathways_nb.cost.efficiency import EFFICIENCY
from pathways_nb.cost.hardware.parameters import rules
from tests.conftest import ROOT

TABLE = Path("pathways_nb", "cost", "collectives", "kinds.py")
LISTS = {
    "adopt/flags.py": {"all-gather", "all-reduce"},  # says of each of these what is wrong with it
    "bench/fsdp.py": {"all-gather", "reduce-scatter", "all-reduce"},  # counts what the compiler made of its step
    "calibration/kernels.py": {"all-gather", "reduce-scatter", "all-reduce", "all-to-all", "permute"},  # runs each
    "cost/calibration/this_machine.py": {"all-gather", "broadcast"},  # the first stands for the second
    "cost/collectives/pricing.py": {"all-gather", "reduce-scatter"},  # what is whole at both ends is made of these
    "cost/hlo/exchanges.py": {"reduce-scatter", "permute"},  # XLA has other words for these
    "cost/hlo/hlo_collectives.py": {"all-reduce", "reduce-scatter"},  # the CPU compiler writes the first for both
    "cost/jaxpr/partial_sums.py": {"all-reduce", "all-gather"},  # adds up parts, and gathers what is needed whole
    "parallel/fsdp/collectives.py": {"all-gather", "reduce-scatter", "all-reduce"},  # issues each
    "parallel/fsdp/sharded_scan.py": {"all-gather", "reduce-scatter"},
    "parallel/fsdp/step_graph.py": {"all-gather", "reduce-scatter", "all-reduce"},
}
"""Modules that name several kinds because they deal with just these, whatever others there may be."""

ROW = """
    CollectiveKind(
        name="made-up", begins_whole=False, ends_whole=True, growth=1, share="all_gather",
        torus=formulas.torus_gather, switch=formulas.switch_gather,
        primitives=("make_up", "make_up_start"), done="make_up_done", opcodes=("collective-make-up",),
    ),
)  # fmt: skip
"""
READERS = """
import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

import pathways_nb
from pathways_nb.cost.collectives.pricing import collective
from pathways_nb.cost.hlo.compiled import _fill_powers
from pathways_nb.cost.hlo.hlo_collectives import hlo_collectives_of, is_collective
from pathways_nb.cost.hlo.hlo_text import parse
from pathways_nb.cost.collectives.collective import Collective
from pathways_nb.cost.jaxpr.node_work import work_of
from pathways_nb.cost.model import CostModel
from pathways_nb.program.items import FlatProgram

# A jaxpr that begins and ends it: its result counts, and the end is free.
start, done = jex.Primitive("make_up_start"), jex.Primitive("make_up_done")
start.def_abstract_eval(lambda value, **_: jax.core.ShapedArray((4 * value.shape[0],), value.dtype))
done.def_abstract_eval(lambda value, **_: value)
jaxpr = jax.make_jaxpr(lambda value: done.bind(start.bind(value, axes=("x",))))(jnp.ones(8))
work = work_of(jaxpr, {"x": 4})
assert work.collectives == (Collective("made-up", 128, ("x",), 4),), work
assert all(one.flops == one.read == one.written == 0 for one in work.amounts), work
assert [item.is_collective for item in FlatProgram.of(jaxpr).ops] == [True, False], "the end alone is none"

# HLO that does the same.
text = '''HloModule jit_f, num_partitions=4

ENTRY %main (p: f32[8]) -> f32[32] {
  %p = f32[8]{0} parameter(0)
  ROOT %m = f32[32]{0} collective-make-up(%p), replica_groups={{0,1,2,3}}
}
'''
(found,) = hlo_collectives_of(parse(text), {"x": 4})
assert (found.kind, found.parts, found.axes, found.group) == ("made-up", ((32, (32,)),), ("x",), 4), found
assert is_collective("collective-make-up-done")
powers = [[{}]]
_fill_powers(powers, [found], [], "x", 2.0)
assert powers == [[{"x": 1}]]

# Prices: on a torus, at switches on several hosts, between islands; and of the node above.
for chip, devices in (("tpu_v5e", 256), ("gpu_h100_sxm", 64)):
    model = CostModel.of(chip)
    island = model.topology(devices)
    for islands in (1, 2):
        assert collective("made_up", 1e9, island, islands=islands) == collective("all_gather", 1e9, island, islands=islands)
    node = model.node(work, model.topology(4), {"x": 4})
    assert node.collective == collective("all_gather", 128, model.topology(4)).seconds
    assert "made-up of 4" in node.formula
print(pathways_nb.__file__)
"""


def test_a_row_that_is_added_is_known_to_jaxprs_compiled_code_and_prices(tmp_path, fresh_python) -> None:
    """In a copy of the package one row is added to the table, and no other file is changed."""
    shutil.copytree(ROOT / "pathways_nb", tmp_path / "pathways_nb")
    table = tmp_path / TABLE
    before, after = table.read_text().split("\n)  # fmt: skip\n")
    table.write_text(before + ROW + after)
    paths = ":".join(map(str, (tmp_path, ROOT / "widgets", ROOT / "datasets")))
    ran = fresh_python(READERS, PYTHONPATH=paths)
    assert ran.returncode == 0, ran.stderr
    assert Path(ran.stdout.strip()).is_relative_to(tmp_path)


def kinds_named(path: Path) -> set[str]:
    """The kinds that a module names, by any of their names, in texts that are one name or a list of names."""
    names = {
        name: kind.name for kind in KINDS for name in (kind.name, kind.identifier, *kind.primitives, *kind.opcodes)
    }
    constants = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
    lists = (text.split() for text in constants if isinstance(text, str))
    return {names[word] for words in lists if names.keys() >= set(words) for word in words}


def test_no_other_module_lists_kinds() -> None:
    """A module other than the table names one kind at most, but for those that deal with a few of them."""
    found = {
        path.relative_to(ROOT / "pathways_nb").as_posix(): named
        for path in (ROOT / "pathways_nb").rglob("*.py")
        if path != ROOT / TABLE and len(named := kinds_named(path)) > 1
    }
    assert found == LISTS


def test_every_name_belongs_to_one_kind_alone() -> None:
    for names in (
        [name for kind in KINDS for name in {kind.name, kind.identifier}],
        [primitive for kind in KINDS for primitive in (*kind.primitives, kind.done)],
        [opcode for kind in KINDS for opcode in kind.opcodes],
    ):
        assert len(set(names)) == len(names)


def test_every_kind_names_its_share_of_bandwidth_and_its_forms_together() -> None:
    assert {kind.share for kind in KINDS} <= rules(type(EFFICIENCY)).keys()
    assert [kind.name for kind in KINDS if kind.switch is None] == [kind.name for kind in KINDS if kind.torus is None]
