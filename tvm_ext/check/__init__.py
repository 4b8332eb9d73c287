"""Checks a compiled model against ONNX Runtime, and finds where a difference comes from."""

from tvm_ext.check.check import check_compiled, check_model
from tvm_ext.check.inputs import load_inputs, random_inputs
from tvm_ext.check.reference import ReferenceSession, run_reference
from tvm_ext.check.result import CheckResult
from tvm_ext.check.tolerance import TOLERANCES, OutputDifference, compare

__all__ = [
    "TOLERANCES",
    "CheckResult",
    "OutputDifference",
    "ReferenceSession",
    "check_compiled",
    "check_model",
    "compare",
    "load_inputs",
    "random_inputs",
    "run_reference",
]
