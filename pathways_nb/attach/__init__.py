"""``pw.attach``: choose devices, real or simulated, and make a controller for them.

``attach`` checks what the user asks for and makes real devices; ``simulator`` does the same for simulated ones.
Devices are measured in ``calibration``, which imports this package; nothing here measures.
Only ``calibration`` and the packages above it may import it.
"""
