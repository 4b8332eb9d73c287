"""Checks a compiled model against ONNX Runtime, and finds where a difference comes from."""
