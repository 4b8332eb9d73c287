"""Passes by name: what is registered, in which order they run, and what they did."""

import tvm_ext.passes.builtin  # noqa: F401  (fills the registry)
