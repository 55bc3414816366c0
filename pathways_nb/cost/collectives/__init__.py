"""Seconds of a collective on a group of devices: closed forms of the alpha-beta model.

It takes a kind, bytes and a group of devices. Reading these from a jaxpr or a compiled program is done in
``cost.jaxpr`` and ``cost.hlo``.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
