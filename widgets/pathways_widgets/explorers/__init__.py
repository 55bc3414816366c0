"""What a person turns: two schedules side by side, trade-offs of two costs, a plain curve.

Nothing is computed here that a notebook could not compute without it.
"""
