"""Templates for CPUs, and what they are made of."""
