"""Figures as people see them: a live widget, a page without a kernel, a still picture, and the browser's scripts.

What the pictures show is in ``graph``, ``timeline`` and ``memory``. ``schedules`` and ``explorers`` may import this
package.
"""
