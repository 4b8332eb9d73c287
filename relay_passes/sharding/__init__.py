"""Splits a program over devices: how tensors are split, what that means for each operator, and
where values have to be exchanged.

The names are those of GSPMD (Y. Xu et al., "GSPMD: General and Scalable Parallelization for ML
Computation Graphs", 2021, arXiv 2105.04663) and of TVM's ``relax.distributed``, whose passes take
neither constants nor convolutions, and stop at what they cannot split.
"""
