"""Rows combined by the threads of a warp or a block: softmax, normalisations, sums."""
