"""Ways to split a model over places, as arithmetic."""
