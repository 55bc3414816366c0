"""Ways to split a model over places: schedules with their explorer, a mixture of experts.

They build programs, and leave their order to the controller.
"""
