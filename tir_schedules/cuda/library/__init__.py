"""Kernels that NVIDIA's libraries compute, where TVM was built with them."""
