"""What the scripts of this folder share: the fake device's compiler, models, their numbers."""

import numpy as np
import onnx
from fake_gpu import State, state
from host_kernels import HostCompiler
from small_models import model, node, rand, value

import tvm_ext
from tvm_ext.hardware.cuda import compilers

__all__ = [
    "ALONE",
    "CHAIN",
    "State",
    "chain",
    "chain_reference",
    "compiled",
    "error_of",
    "rand",
    "state",
]

compilers._installed = lambda wanted: HostCompiler()

CHAIN = ("Neg", "Exp", "Neg", "Abs", "Sqrt", "Neg", "Exp")
# Every operator stays, as a kernel of its own.
ALONE = ("AlgebraicSimplification", "CorrelatedValuePropagation", "FuseOperators", "FuseTIR")


def chain(rows: int | str = 4) -> onnx.ModelProto:
    """y = exp(-sqrt(|-exp(-x)|)), one operator after the other."""
    names = ["x", *(f"v{i}" for i in range(len(CHAIN) - 1)), "y"]
    nodes = [node(op, [names[i]], [names[i + 1]]) for i, op in enumerate(CHAIN)]
    return model(nodes, [value("x", [rows, 8])], [value("y", [rows, 8])])


def chain_reference(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.sqrt(np.abs(-np.exp(-x))))


def compiled(proto: onnx.ModelProto, **options) -> tvm_ext.CompiledModel:
    return tvm_ext.compile(proto, target="nvidia-h200", **options)


def error_of(function, *arguments) -> str:
    """The message of the error of ours that a call raises, with its kind."""
    try:
        function(*arguments)
    except tvm_ext.TvmExtError as error:
        return repr(f"{type(error).__name__}: {error}")[1:-1]
    raise AssertionError("nothing was raised")
