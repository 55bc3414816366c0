"""``pw.attach``: choose devices, real or simulated, and make a controller for them.

``attach`` checks what the user asks for and makes real devices; ``simulator`` does the same for simulated ones.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
