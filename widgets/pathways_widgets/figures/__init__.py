"""Figures where people see them: a live widget, a page without a kernel, a still picture, with their scripts.

No picture of its own.
"""
