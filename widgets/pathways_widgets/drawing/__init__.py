"""What every picture is drawn with: colours, sizes, a scene of shapes, axes, the contract of a view.

Nothing here knows what is drawn.
"""
