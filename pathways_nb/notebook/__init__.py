"""The notebook: ``%%pathways`` and ``%pathways``, and an executed notebook as one HTML page.

The magics parse options and call the same functions that scripts call; nothing is decided here.
Only the command line and the package itself import this package.
"""
