"""What a user runs to see this tool beside its peers on their own machine: ``python -m pathways_nb bench NAME``.

Each module here but ``report`` and ``timing`` is one bench: ``run() -> {"figures": {name: number}, "detail": ...}``,
with ``"units": {name: unit}`` of the figures whose names do not tell it (see ``report``). A figure whose peer is not
installed is absent, never invented.
"""
