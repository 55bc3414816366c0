"""Questions asked of programs many times over: ``pw.sweep`` and ``pw.predict``.

No pictures.
"""
