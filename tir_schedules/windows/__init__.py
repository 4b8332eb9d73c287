"""Reads kernels around a sliding window (pooling, convolution), for any machine."""
