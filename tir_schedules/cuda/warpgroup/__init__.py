"""Matmuls and attention by warpgroups on Hopper: pipelines, tensor maps, instructions, epilogue."""
