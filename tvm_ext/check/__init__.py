"""Checks a compiled model against ONNX Runtime, finds where a difference comes from, and chooses
precisions by the difference that they make.
"""
