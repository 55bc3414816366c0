"""Nodes that travel: each is lowered once, on an abstract mesh, and compiled by the hosts that launch it.

``jax.export`` gives a node as text that any devices of the right number can compile. What the compiler chose (layouts
of outputs, memory) comes back from the first island that launches it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding

from pathways_nb.errors import UsageError
from pathways_nb.program.emit import module_of, out_shardings
from pathways_nb.program.items import equations
from pathways_nb.runtime.event_loop import Clock
from pathways_nb.runtime.hosts.messages import NodeFacts, PortableNode
from pathways_nb.runtime.lowering.executables import CompileRequest, Executable, jitted, quietly
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import Label, Row, label_of
from pathways_nb.util.waiting import Promise, Workers

_UNSTABLE = re.compile(r"'([^']+)'")

CompileOn = Callable[[int, int, PortableNode], NodeFacts]
"""Compiles a node on the devices of an island from a first one on, and returns what that told."""


class RemoteCompiler:
    """Makes executables of nodes on hosts; it takes the place of ``Executables`` in a ``PlanCompiler``.

    Args:
        platform: of the hosts' devices, as JAX calls it.
        compile_on: compiles on an island.
        clock: returns seconds.
    """

    def __init__(self, platform: str, compile_on: CompileOn, clock: Clock):
        self.platform, self._compile_on, self.clock = platform, compile_on, clock
        self._pool = Workers("pathways-export", max(2, min(8, os.cpu_count() or 1)))

    def get(self, request: CompileRequest, record: Record) -> Promise[Executable]:
        """Return a promise of a node's executable, whose ``call`` is the ``PortableNode``.

        Raises:
            UsageError: (of the promise) the node calls back to this process.
        """
        start = self.clock()
        node = export(request, self.platform)
        record.add(Row(_label("lower", request.label), start, self.clock(), quality="exact"))
        return self._pool.submit(self._get, node, request, record)

    def close(self) -> None:
        """End the threads."""
        self._pool.close()

    def _get(self, node: PortableNode, request: CompileRequest, record: Record) -> Executable:
        start = self.clock()
        facts = self._compile_on(request.label.island, request.label.device, node)
        record.add(Row(_label("compile", request.label), start, self.clock(), quality="exact"))
        shardings = tuple(NamedSharding(request.mesh, spec) for spec in facts.specs)
        call: Any = node
        return Executable(call, shardings, facts.flops, facts.temporary, facts.reused, None, may_block=facts.may_block)


def export(request: CompileRequest, platform: str) -> PortableNode:
    """Return a node as text for any devices of this platform.

    Raises:
        UsageError: the node calls back to this process.
    """
    code = request.code
    if any(_calls_back(eqn.primitive.name) for item in code.items for eqn in equations(item.jaxpr)):
        line = f" ({request.label.line})" if request.label.line else ""
        raise UsageError(
            f"{code.name} of {request.label.program}{line} calls back to Python or prints, and its hosts are other "
            f'processes. Return the value and look at it here, or attach devices of this process: pw.attach("cpu").'
        )
    exported = _serialised(request, platform)
    arriving = tuple(sharding.spec for sharding in request.arriving)
    leaving = tuple(None if s is None else s.spec for s in out_shardings(code, request.mesh))
    options = tuple(sorted(code.options_on(platform).items()))
    shape, axes = tuple(request.mesh.shape.values()), tuple(request.mesh.axis_names)
    facts = repr((shape, axes, arriving, leaving, request.donated, options, module_of(code.name), request.contexts))
    digest = hashlib.sha256(exported + facts.encode()).hexdigest()
    return PortableNode(digest, exported, shape, axes, arriving, leaving, request.donated, options, request.contexts)


def _serialised(request: CompileRequest, platform: str) -> bytes:
    """Return a node's exported text.

    JAX refuses custom calls whose meaning may change between versions; kernel and hosts have the same version.
    """
    checks: list[Any] = []
    while True:
        try:
            return bytes(quietly(partial(_exported, request, platform, checks)).serialize())
        except ValueError as error:
            names = _UNSTABLE.findall(str(error)) if "no compatibility guarantees" in str(error) else []
            if not names or checks:
                raise
            checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in names]


def _exported(request: CompileRequest, platform: str, disabled_checks: Sequence[Any]) -> Any:
    exporting = jax.export.export(jitted(request), platforms=(platform,), disabled_checks=disabled_checks)
    return exporting(*request.structs)


def _calls_back(primitive: str) -> bool:
    return "callback" in primitive or primitive.startswith("debug_")


def _label(kind: str, of: Label) -> Label:
    return label_of(kind, of.name, of.program, of.client, of.node, of.place, line=of.line)
