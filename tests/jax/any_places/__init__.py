"""Random programs over places of unlike sizes and shapes, compared with plain JAX.

``writing`` writes a program as Python text from a seed, with the functions of ``bodies`` in its computations, and
``donating`` one about memory that is given up; ``checking`` runs the text twice, as it is and with ``plain`` in the place
of ``pathways_nb``. ``python -m tests.jax.any_places --seconds 600 --seed 0`` tries as many as there is time for, and
prints the text of each that fails.
"""
