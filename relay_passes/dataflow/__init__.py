"""Dataflow analyses of Relax modules: what holds for values in every run.

``framework`` has the fixed point, forward and backward, over If, Loop and calls; each other file
is an analysis.
"""
