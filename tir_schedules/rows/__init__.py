"""Reads kernels that combine along rows (softmax, normalisations, sums), for any machine."""
