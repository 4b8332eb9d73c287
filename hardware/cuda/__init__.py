"""NVIDIA's driver, compilers and run-time library: what is there, and what it makes of code."""
