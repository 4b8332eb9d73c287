"""Templates for wafer-scale meshes, and what they are made of."""
