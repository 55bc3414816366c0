"""Seconds of a collective on a group of devices: closed forms of the alpha-beta model.

It takes a kind, bytes and a group of devices. ``kinds`` is the one table of the kinds of collectives. Collectives are
read from a jaxpr in ``cost.jaxpr`` and from a compiled program in ``cost.hlo``.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
