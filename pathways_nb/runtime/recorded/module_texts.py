"""The text of compiled modules that a profile holds, so that its ops are joined with operations and lines of a program.

A profile holds modules as protobuf messages, of which jaxlib makes the text that ``compiled.as_text()`` has. That part
of jaxlib is not public: where it is missing, ops have the sources that the profile itself says.
"""

from __future__ import annotations

from collections.abc import Mapping

from pathways_nb.cost.hlo.hlo_sources import HloOp, ops_of
from pathways_nb.runtime.recorded.xspace_bytes import first_part
from pathways_nb.util.fallbacks import fall_back

_MODULE = 1
"""Field of an ``HloProto``: the module."""


def module_ops(modules: Mapping[str, bytes]) -> dict[str, dict[str, HloOp]]:
    """Return the operations of compiled modules by name; those that cannot be read are left out.

    Args:
        modules: each a serialised ``HloProto``, by name.
    """
    found: dict[str, dict[str, HloOp]] = {}
    for name, proto in modules.items():
        try:
            from jaxlib import _hlo  # type: ignore[attr-defined]  # late: no part of the public API

            module = _hlo.HloModule.from_serialized_hlo_module_proto(first_part(proto, _MODULE))
            found[name] = ops_of(module.to_string())
        except Exception as error:  # of whatever class jaxlib raises, or a text of a form that is not known
            fall_back("Compiled modules of a profile cannot be read", error, "Some ops have no line of your code.")
    return found
