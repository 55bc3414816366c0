"""What a collective takes on a group of devices: closed forms of the alpha-beta model.

No jaxpr and no compiled program.
"""
