"""Kernels of recurrent layers: what they compute, their loops, and a template for CPUs."""
