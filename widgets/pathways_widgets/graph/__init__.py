"""The picture of a sharded dataflow graph: its layout, its columns, its labels.

No time.
``timeline``, ``figures`` and what lies above them may import it.
"""
