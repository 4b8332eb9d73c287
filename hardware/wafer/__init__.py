"""Wafer-scale meshes: closed forms of communication, limits, and a simulator of the fabric."""
