"""Suppression of overlapping boxes."""
