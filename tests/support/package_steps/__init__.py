"""Training steps of published packages, adopted as they are: a list, what little each needs, and their recorded texts."""
