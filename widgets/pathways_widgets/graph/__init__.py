"""The picture of a sharded dataflow graph: its layout, its columns, its labels.

No time.
"""
