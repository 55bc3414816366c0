"""The parts that all pictures share: colours, sizes, a scene of shapes, axes, and the contract of a view.

Nothing here knows what a picture shows. Every other package of the widgets may import this one.
"""
