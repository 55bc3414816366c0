"""Which instruction of a compiled module reads what another one made, through tuples, loops and branches.

Most lines of a module only pass values on: they take an element of a tuple, or hand a tuple to a loop. What matters is
which work waits for which, so values are followed from the instruction that made them to those that read them. The
values of a loop are followed for two passes: what the second one reads of the first is an edge, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pathways_nb.cost.hlo.hlo_text import HloComputation, HloInstruction, HloModule

Made = frozenset[str]
"""Names of the instructions that made a value."""
Value = Made | list["Value"]
"""Who made a value; of a tuple, who made each element."""
_NOBODY: Made = frozenset()


def reads_in(module: HloModule, working: Collection[str]) -> dict[tuple[str, str], float]:
    """Return for each pair of instructions of which one reads a value of the other the bytes of that, once.

    Args:
        module: scheduled.
        working: names of the instructions that are told apart; all others only pass values on.
    """
    flow = _Flow(module, frozenset(working))
    flow.run(module.computations[module.entry], ())
    return flow.reads


class _Flow:
    """Follows the values of one module.

    Args:
        module: scheduled.
        working: names of the instructions that are told apart.
    """

    def __init__(self, module: HloModule, working: frozenset[str]):
        self.module, self.working = module, working
        self.reads: dict[tuple[str, str], float] = {}

    def run(self, computation: HloComputation, arguments: Sequence[Value]) -> Value:
        """Return who made the result of a computation.

        Args:
            computation: of the module.
            arguments: who made each parameter.
        """
        values: dict[str, Value] = {}
        result: Value = _NOBODY
        for one in computation.instructions.values():
            values[one.name] = self._value(computation, one, values, arguments)
            if one.is_root:
                result = values[one.name]
        return result

    def _value(
        self, computation: HloComputation, one: HloInstruction, values: dict[str, Value], arguments: Sequence[Value]
    ) -> Value:
        """Return who made the value of an instruction, and note what it reads if it works."""
        if one.opcode == "parameter":
            at = int(one.inside)
            return arguments[at] if at < len(arguments) else _NOBODY
        operands = [(name, values.get(name, _NOBODY)) for name in one.operands]
        if one.name in self.working:
            for name, value in operands:
                self._note(computation, name, value, one.name)
            return frozenset({one.name})
        given = [value for _, value in operands]
        if one.opcode == "tuple":
            return given
        if (element := one.element) is not None and given:
            whole = given[0]
            return whole[element] if isinstance(whole, list) and element < len(whole) else whole
        if one.opcode in ("while", "call", "conditional") and one.called:
            return self._called(one, given)
        return frozenset().union(*map(_flat, given))

    def _called(self, one: HloInstruction, given: list[Value]) -> Value:
        """Return who made the results of what an instruction runs."""
        called = [self.module.computations[name] for name in one.called]
        if one.opcode == "while":
            first = self.run(called[0], given)
            return self.run(called[0], [_either(given[0], first)])
        if one.opcode == "call":
            return self.run(called[0], given)
        found: Value = _NOBODY
        for branch, value in zip(called, given[1:], strict=False):
            found = _either(found, self.run(branch, [value]))
        return found

    def _note(self, computation: HloComputation, name: str, value: Value, reader: str) -> None:
        made = computation.instructions.get(name)
        size = sum(shape.bytes for shape in made.shapes) if made is not None else 0.0
        for maker in _flat(value):
            if maker != reader:
                self.reads[maker, reader] = max(self.reads.get((maker, reader), 0.0), size)


def _flat(value: Value) -> Made:
    """Return who made any element of a value."""
    return frozenset().union(*map(_flat, value)) if isinstance(value, list) else value


def _either(one: Value, other: Value) -> Value:
    """Return who made a value that is one or the other."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [_either(a, b) for a, b in zip(one, other, strict=True)]
    return _flat(one) | _flat(other)
