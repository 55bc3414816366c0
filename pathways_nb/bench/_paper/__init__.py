"""Pathways' Figures 5 to 12 and Table 2, simulated through the controller; ``pathways_nb.bench.paper`` reports them.

``declared`` says before any run what is fitted on which numbers and what is predicted; ``dispatch_rates`` (Figures 5 to
7), ``clients`` (8, 9, 11), ``staged_decoder`` (Table 2, Figure 10) and ``two_islands`` (12) run programs on simulated
pods.
"""
