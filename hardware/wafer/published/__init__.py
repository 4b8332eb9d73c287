"""Models of published measurements: one family of kernels a file, each with few parameters.

A family says which rows of a table of measurements it recognises, what they cost, and what it does
not cover and why. Everything is in cycles; ``units`` converts at the border. The fitted parameters
are in ``configs/wafer/calibration.toml``.
"""
