"""What kernels are, for templates and cost models of any machine.

Axes, accesses and addresses, loads under conditions; the recognised forms: contractions, sliding
windows, stencils, rows, nests of one assignment.
"""
