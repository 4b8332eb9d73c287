"""Templates for NVIDIA GPUs, and what they are made of."""
