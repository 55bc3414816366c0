"""Adopted steps, from what compilers wrote: collectives by line, flags, forms on disk."""
