"""Steps of a model that the host computes around its compiled parts.

Strings, sequences, maps and optionals have no place in compiled code. ``partition`` takes a
prepared graph apart into host nodes and compiled parts, ``operators`` computes host nodes
with NumPy, and ``program`` runs both in order.
"""
