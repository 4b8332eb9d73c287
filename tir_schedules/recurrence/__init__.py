"""Recurrent layers, whatever the machine: what they compute, their cells, and where a step is."""
