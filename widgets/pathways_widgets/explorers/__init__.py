"""Interactive pictures of choices: two schedules side by side, trade-offs of two costs, a plain curve.

Nothing is computed here that a script could not compute without a notebook; explorers hold only controls and drawings.
Only ``pathways_widgets`` itself imports this package, and ``pathways_nb`` when something is shown.
"""
