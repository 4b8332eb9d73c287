"""Sorting along an axis, and the best of it: TopK, ArgSort, Sort."""
