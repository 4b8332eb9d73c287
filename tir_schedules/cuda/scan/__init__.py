"""Running sums and products: every element with all that are in front of it."""
