"""Ways to split a model over places: they build programs, and leave their order to the controller."""
