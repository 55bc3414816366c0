"""The notebook's doors: ``%%pathways``, ``%pathways``, and a notebook as one page.

They parse options; what they ask for is done elsewhere.
"""
