"""Small models in plain JAX that notebooks, tests and benches share, and a program that shows why order matters.

Users of the package need none of them.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
