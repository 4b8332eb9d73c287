"""Products by warpgroups on Hopper: the ring of stages, tensor maps, instructions and epilogue."""
