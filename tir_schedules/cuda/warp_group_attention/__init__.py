"""Attention by warp groups on Hopper: bulk copies, asynchronous products, softmax in registers."""
