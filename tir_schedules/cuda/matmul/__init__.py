"""Contractions of two operands: axes, tiles, instructions, staging and splits."""
