"""A small model, and passes that compute parts of it wrongly."""

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

RELU = tvm.ir.Op.get("relax.nn.relu")


def model() -> onnx.ModelProto:
    """conv - relu - flatten - matmul - add, with a tanh branch that is an output too."""
    draw = np.random.default_rng(3)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"], name="relu"),
            helper.make_node("Flatten", ["r"], ["f"], name="flatten"),
            helper.make_node("MatMul", ["f", "m"], ["p"], name="project"),
            helper.make_node("Add", ["p", "b"], ["y"], name="bias"),
            helper.make_node("Tanh", ["x"], ["t"], name="tanh"),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 4, 4])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5]),
            helper.make_tensor_value_info("t", TensorProto.FLOAT, [1, 2, 4, 4]),
        ],
        [
            numpy_helper.from_array(draw.standard_normal(shape, np.float32), name)
            for name, shape in {"w": (3, 2, 3, 3), "m": (48, 5), "b": (5,)}.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@mutator
class ReluToNegative(PyExprMutator):
    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        return relax.op.negative(call.args[0]) if call.op == RELU else call


def break_relu(mod: tvm.IRModule) -> tvm.IRModule:
    """Makes every relu a negation."""
    mutated = ReluToNegative(mod)
    functions = {
        var: mutated.visit_expr(func) if isinstance(func, relax.Function) else func
        for var, func in mod.functions.items()
    }
    return tvm.IRModule(functions, attrs=mod.attrs)


# VectorMath writes tanh out, and then there is no call of it left to break.
PLAIN_TANH = ["VectorMath"]


def one_percent_more(mod: tvm.IRModule, kernel: str, function: str) -> tvm.IRModule:
    """Multiplies every result of the TIR function ``function`` by 1.01 in kernels named so."""
    functions = {
        var: scaled(func, function)
        if isinstance(func, tirx.PrimFunc) and kernel in str(var.name_hint)
        else func
        for var, func in mod.functions.items()
    }
    return tvm.IRModule(functions, attrs=mod.attrs)


def scaled(func: tirx.PrimFunc, function: str) -> tirx.PrimFunc:
    text = func.script().replace(f"T.{function}(", f"T.float32(1.01) * T.{function}(")
    return tvm.script.from_source(text)
