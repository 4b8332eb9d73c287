"""Attention with online softmax: by warps on tensor cores, by lanes for float32."""
