"""Products by warp groups on Hopper: the ring of stages, tensor maps, instructions and epilogue."""
