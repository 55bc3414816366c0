"""The one table of the kinds of collectives: what each moves, its names, and its closed forms.

All readers ask this table: those of jaxprs (``cost.jaxpr.primitives``, ``cost.jaxpr.node_work``), those of compiled
code (``cost.hlo``), and the prices (``pricing``). A new kind is one more row of ``KINDS``. The names of primitives are
those of JAX 0.10 to 0.12, and the names of opcodes those of XLA; both are strings here, so that nothing needs JAX.
"""

from __future__ import annotations

from dataclasses import dataclass

from pathways_nb.cost.collectives import formulas
from pathways_nb.cost.collectives.formulas import SwitchForm, TorusForm


@dataclass(frozen=True, kw_only=True)
class CollectiveKind:
    """One kind of collective.

    The two flags say what a device has, the full logical array or one of as many parts as there are participants. So
    they say, too, which buffer is measured, and how a collective is divided over hosts and islands (``pricing``).

    Args:
        name: as results write it, in HLO's spelling.
        begins_whole: whether the operand on each device is as large as the full logical array.
        ends_whole: whether the result on each device is.
        sums: whether it adds up what devices have.
        growth: power of an axis's size with which the bytes on a device that go over it grow, where only one size was
            compiled.
        torus: seconds over links; None of a shift, whose distance counts as well (``pricing``).
        switch: seconds through a switch or over NICs; None of a shift.
        share: field of ``cost.efficiency.Efficiency`` for the share of bandwidth that it reaches; kinds may share one.
        primitives: of JAX, that do it or begin it.
        done: primitive that ends what a ``…_start`` began, and that is not counted again; empty if there is none.
        opcodes: of HLO, without ``-start`` and ``-done``.
    """

    name: str
    begins_whole: bool
    ends_whole: bool
    sums: bool = False
    growth: int = 0
    torus: TorusForm | None
    switch: SwitchForm | None
    share: str
    primitives: tuple[str, ...]
    done: str = ""
    opcodes: tuple[str, ...]

    @property
    def identifier(self) -> str:
        """The name in Python's spelling, such as ``"all_reduce"``."""
        return self.name.replace("-", "_")

    @property
    def counts_result(self) -> bool:
        """Whether its bytes on a device are those of its result; else those of its operands."""
        return self.ends_whole and not self.begins_whole

    @property
    def counts_part(self) -> bool:
        """Whether its bytes on a device are only one part of the full logical array."""
        return not (self.begins_whole or self.ends_whole)


KINDS = (
    CollectiveKind(
        name="all-gather", begins_whole=False, ends_whole=True, share="all_gather",
        torus=formulas.torus_gather, switch=formulas.switch_gather,
        primitives=("all_gather", "all_gather_invariant", "all_gather_reduced", "all_gather_start",
                    "all_gather_reduced_start"),
        done="all_gather_done", opcodes=("all-gather",),
    ),
    CollectiveKind(
        name="reduce-scatter", begins_whole=True, ends_whole=False, sums=True, share="reduce_scatter",
        torus=formulas.torus_gather, switch=formulas.switch_gather,
        primitives=("reduce_scatter", "unreduced_reduce_scatter", "reduce_scatter_start",
                    "unreduced_reduce_scatter_start"),
        done="reduce_scatter_done", opcodes=("reduce-scatter",),
    ),
    CollectiveKind(
        name="all-reduce", begins_whole=True, ends_whole=True, sums=True, share="all_reduce",
        torus=formulas.torus_all_reduce, switch=formulas.switch_all_reduce,
        primitives=("psum", "psum_invariant", "pmax", "pmin", "unreduced_psum", "unreduced_pmax", "unreduced_pmin",
                    "psum_start", "psum_invariant_start", "unreduced_psum_start"),
        done="psum_done", opcodes=("all-reduce",),
    ),
    CollectiveKind(
        name="all-to-all", begins_whole=False, ends_whole=False, growth=-1, share="all_to_all",
        torus=formulas.torus_all_to_all, switch=formulas.switch_all_to_all,
        primitives=("all_to_all", "ragged_all_to_all", "all_to_all_start"),
        done="all_to_all_done", opcodes=("all-to-all", "ragged-all-to-all"),
    ),
    CollectiveKind(
        name="broadcast", begins_whole=True, ends_whole=True, share="broadcast",
        torus=formulas.torus_broadcast, switch=formulas.switch_broadcast,
        primitives=("pbroadcast", "pbroadcast_dynamic", "pbroadcast_start"),
        done="pbroadcast_done", opcodes=("collective-broadcast",),
    ),
    CollectiveKind(
        name="permute", begins_whole=False, ends_whole=False, share="permute", torus=None, switch=None,
        # ``precv`` is absent: it ends what ``psend`` begins, and each exchange is counted once.
        primitives=("ppermute", "psend", "ppermute_start"), done="ppermute_done", opcodes=("collective-permute",),
    ),
)  # fmt: skip

BY_NAME = {name: kind for kind in KINDS for name in (kind.name, kind.identifier)}
"""The kinds by their names, in both spellings."""
BY_PRIMITIVE = {primitive: kind for kind in KINDS for primitive in kind.primitives}
"""The kinds by JAX's primitives that do or begin them."""
BY_OPCODE = {opcode: kind for kind in KINDS for opcode in kind.opcodes}
"""The kinds by HLO's opcodes."""
