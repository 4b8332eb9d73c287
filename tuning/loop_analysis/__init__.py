"""Scheduled kernels read as loops around vector instructions, and what these cost on a CPU."""
