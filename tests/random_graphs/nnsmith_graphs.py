"""Random graphs of NNSmith, written as ONNX models.

NNSmith (Liu et al., ASPLOS 2023) draws graphs whose shapes and attributes fit each other by a
solver. Its own way to ONNX goes through PyTorch, which is a gigabyte, and through the exporter of
an older release of it; here each of its operators is written as the node of ONNX that it stands
for. It is not installed with the tests: ``pip install nnsmith`` where its graphs are wanted.
"""

import importlib
import importlib.util
import math
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from graph_builder import NotApplicable, RandomGraph
from onnx import helper, numpy_helper

_OPSET = 20
# Types that ONNX Runtime has most operators for.
_TYPES = ("float32", "int64", "bool")

# Floor, Ceil and Round are left out: they jump, and near an integer rounding decides.
_SAME_NAME = (
    *("Sigmoid", "Sin", "Cos", "Asin", "Acos", "Tan", "Atan", "Abs"),
    *("Sqrt", "Neg", "Where", "Add", "Sub", "Mul", "Max", "Min", "Equal", "Greater", "Less", "And"),
    *("Or", "Xor", "Div", "Pow", "MatMul"),
)
_RENAMED = {"ReLU": "Relu", "LeakyReLU": "LeakyRelu", "GELU": "Gelu"}
_REDUCTIONS = ("ReduceSum", "ReduceMin", "ReduceMax", "ReduceMean", "ReduceProd")
_INTERPOLATIONS = ("NearestInterp", "LinearInterp", "BilinearInterp", "TrilinearInterp")


class _Writer:
    """Writes a graph of NNSmith node by node."""

    def __init__(self, rng: random.Random) -> None:
        self.numbers = np.random.default_rng(rng.randrange(1 << 32))
        self.nodes: list[onnx.NodeProto] = []
        self.stored: dict[str, np.ndarray] = {}

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        name = f"stored{len(self.stored)}"
        self.stored[name] = np.asarray(array, dtype)
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.numbers.normal(0, 0.5, shape))

    def node(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> None:
        name = f"{kind}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], name, **attributes))

    def write(self, op: Any, inputs: Sequence[str], output: str) -> None:
        """One operator; not applicable where it has no counterpart here."""
        kind = type(op).__name__
        if kind in _SAME_NAME or kind in _RENAMED:
            self.node(_RENAMED.get(kind, kind), inputs, output)
            return
        writer = _writer_of(kind)
        if writer is None:
            raise NotApplicable
        writer(self, op, list(inputs), output)


def _writer_of(kind: str) -> Callable[[_Writer, Any, list[str], str], None] | None:
    groups = {"Concat": _concat, "Cast": _cast, "ExpandLast": _expand}
    if kind in _REDUCTIONS or kind in ("ArgMin", "ArgMax", "Squeeze"):
        return _reduction
    if kind in _INTERPOLATIONS:
        return _resize
    return _WRITERS.get(kind) or next((w for n, w in groups.items() if kind.startswith(n)), None)


def _concat(w: _Writer, op: Any, inputs: list[str], output: str) -> None:
    w.node("Concat", inputs, output, axis=op.extra_attrs["axis"])


def _cast(w: _Writer, op: Any, inputs: list[str], output: str) -> None:
    to = helper.np_dtype_to_tensor_dtype(_numpy(op.output_like[0]))
    w.node("Cast", inputs, output, to=to)


def _expand(w: _Writer, op: Any, inputs: list[str], output: str) -> None:
    w.node("Expand", [*inputs, w.constant(op.output_like[0].shape, np.int64)], output)


def _reduction(w: _Writer, op: Any, inputs: list[str], output: str) -> None:
    kind, axis = type(op).__name__, op.extra_attrs["reduce_dim"]
    if kind in ("ArgMin", "ArgMax"):
        if axis is None:
            raise NotApplicable
        w.node(kind, inputs, output, axis=axis, keepdims=0)
        return
    axes = [] if axis is None else [w.constant([axis], np.int64)]
    if kind == "Squeeze":
        w.node(kind, [*inputs, *axes], output)
    else:
        w.node(kind, [*inputs, *axes], output, keepdims=0)


def _resize(w: _Writer, op: Any, inputs: list[str], output: str) -> None:
    sizes = w.constant([*op.input_like[0].shape[:2], *op.size], np.int64)
    nearest = type(op).__name__ == "NearestInterp"
    how: dict[str, Any] = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    if nearest:
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
        how["nearest_mode"] = "floor"
    w.node("Resize", [*inputs, "", "", sizes], output, **how)


def _prelu(w: _Writer, _op: Any, inputs: list[str], output: str) -> None:
    w.node("PRelu", [*inputs, w.constant([0.25])], output)


def _clip(w: _Writer, op: Any, inputs: list[str], output: str) -> None:
    dtype = _numpy(op.output_like[0])
    limit = 1.5 if dtype.kind == "f" else 1
    w.node("Clip", [*inputs, w.constant(-limit, dtype), w.constant(limit, dtype)], output)


def _log2(w: _Writer, _op: Any, inputs: list[str], output: str) -> None:
    w.node("Log", inputs, f"{output}_log")
    w.node("Div", [f"{output}_log", w.constant(math.log(2))], output)


def _softmax(w: _Writer, op: Any, inputs: list[str], output: str) -> None:
    w.node("Softmax", inputs, output, axis=op.dim)


def _pool(w: _Writer, op: Any, inputs: list[str], output: str) -> None:
    average = {"count_include_pad": 1} if type(op).__name__ == "AvgPool2d" else {}
    w.node(
        "AveragePool" if average else "MaxPool",
        inputs,
        output,
        kernel_shape=[op.kernel_h_size, op.kernel_w_size],
        strides=[op.stride] * 2,
        pads=[op.padding] * 4,
        **average,
    )


def _slice(w: _Writer, op: Any, inputs: list[str], output: str) -> None:
    parts = ([op.start], [op.end], [op.extra_attrs["axis"]], [op.step])
    w.node("Slice", [*inputs, *(w.constant(part, np.int64) for part in parts)], output)


def _pad(w: _Writer, op: Any, inputs: list[str], output: str) -> None:
    rank, listed = op.input_like[0].ndims, op.padding_list
    before, after = [0] * rank, [0] * rank
    # The last axis comes first in the list.
    for place in range(len(listed) // 2):
        before[rank - 1 - place], after[rank - 1 - place] = listed[2 * place : 2 * place + 2]
    mode = {"constant": "constant", "replicate": "edge", "reflect": "reflect"}
    values = [w.constant([*before, *after], np.int64)]
    if op.extra_attrs["type"] == "constant":
        values.append(w.constant(0.5, _numpy(op.output_like[0])))
    w.node("Pad", [*inputs, *values], output, mode=mode[op.extra_attrs["type"]])


def _batch_norm(w: _Writer, op: Any, inputs: list[str], output: str) -> None:
    stored = [w.weight(op.nfeat) for _ in range(3)]
    variance = w.constant(w.numbers.uniform(0.5, 1.5, op.nfeat))
    w.node("BatchNormalization", [*inputs, *stored, variance], output)


def _conv1d(w: _Writer, op: Any, inputs: list[str], output: str) -> None:
    stored = [w.weight(op.out_channels, op.in_channels, op.kernel_size), w.weight(op.out_channels)]
    how = {"strides": [op.stride], "pads": [op.padding] * 2, "dilations": [op.dilation]}
    w.node("Conv", [*inputs, *stored], output, **how)


def _conv2d(w: _Writer, op: Any, inputs: list[str], output: str) -> None:
    window = (op.kernel_h_size, op.kernel_w_size)
    stored = [w.weight(op.out_channels, op.in_channels, *window), w.weight(op.out_channels)]
    how = {"strides": [op.stride] * 2, "pads": [op.padding] * 4}
    w.node("Conv", [*inputs, *stored], output, dilations=[op.dilation_h, op.dilation_w], **how)


def _reshape(w: _Writer, op: Any, inputs: list[str], output: str) -> None:
    w.node("Reshape", [*inputs, w.constant(op.target_shape, np.int64)], output)


def _transpose(w: _Writer, op: Any, inputs: list[str], output: str) -> None:
    shape = op.input_like[0].shape
    order = list(range(len(shape)))
    first, second = op._init_swap_dims(shape)
    order[first], order[second] = order[second], order[first]
    w.node("Transpose", inputs, output, perm=order)


def _triangle(w: _Writer, op: Any, inputs: list[str], output: str) -> None:
    upper = int(type(op).__name__ == "Triu")
    w.node("Trilu", [*inputs, w.constant(op.diagonal, np.int64)], output, upper=upper)


_WRITERS: dict[str, Callable[[_Writer, Any, list[str], str], None]] = {
    "PReLU": _prelu,
    "Clip": _clip,
    "Log2": _log2,
    "Softmax": _softmax,
    "MaxPool2d": _pool,
    "AvgPool2d": _pool,
    "Slice": _slice,
    "ConstPad": _pad,
    "ReplicatePad": _pad,
    "ReflectPad": _pad,
    "BatchNorm2d": _batch_norm,
    "Conv1d": _conv1d,
    "NCHWConv2d": _conv2d,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Tril": _triangle,
    "Triu": _triangle,
}


def is_installed() -> bool:
    """Whether NNSmith can be imported."""
    return importlib.util.find_spec("nnsmith") is not None


def _modules() -> tuple[Any, Any]:
    with warnings.catch_warnings():
        # It would like to draw its graphs.
        warnings.simplefilter("ignore")
        return tuple(map(importlib.import_module, ("nnsmith.graph_gen", "nnsmith.abstract.op")))


def _operators() -> list[Any]:
    """Those that can be written, restricted to ``_TYPES``."""
    found = []
    for op in sorted(_modules()[1].FULL_OPERATOR_SETS["core"], key=lambda one: one.__name__):
        name = op.__name__
        if name not in _SAME_NAME and name not in _RENAMED and _writer_of(name) is None:
            continue
        for which in ("in_dtypes", "out_dtypes"):
            known = [t for t in getattr(op, which) if all(_name(d) in _TYPES for d in t)]
            setattr(op, which, known)
        if name == "ReduceProd":
            # A product of integers that is too large is cut by us and by NumPy, and is the largest
            # integer in ONNX Runtime.
            op.in_dtypes = [t for t in op.in_dtypes if _name(t[0]) == "float32"]
            op.out_dtypes = op.in_dtypes
        if (name.startswith("Cast") and name != "CastF32") or name in ("Greater", "Less"):
            # Which integer a computed float becomes, and which of two equal floats is larger, is
            # decided by rounding.
            op.in_dtypes = [t for t in op.in_dtypes if _name(t[0]) != "float32"]
        if op.in_dtypes and op.out_dtypes:
            found.append(op)
    return found


def _name(dtype: Any) -> str:
    return str(np.dtype(dtype.numpy()))


def _numpy(tensor: Any) -> np.dtype:
    return np.dtype(tensor.dtype.numpy())


def build_nnsmith_graph(rng: random.Random, nodes: int = 8) -> RandomGraph:
    """A graph of at most so many operators, all of whose leaves are outputs.

    The same numbers give the same operators. Sizes may differ, since what the solver answers
    depends on what this process asked it before.

    Raises
    ------
    NotApplicable
        The solver found no graph, or ONNX does not infer its shapes.
    """
    generator, _ = _modules()
    seed = rng.randrange(1 << 30)
    drawn = generator.model_gen(
        _operators(), method="symbolic-cinit", max_nodes=nodes, seed=seed, timeout_ms=3000
    )
    ir = drawn.make_concrete()
    writer = _Writer(rng)
    inputs, fed = [], {}
    for inst in ir.insts:
        op, name = inst.iexpr.op, inst.retval()
        kind = type(op).__name__
        if kind in ("Input", "Constant", "Placeholder"):
            tensor = ir.vars[name]
            array = _numbers(writer, tuple(map(int, tensor.shape)), _numpy(tensor))
            if kind == "Constant":
                writer.nodes.append(
                    helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))
                )
                continue
            fed[name] = array
            inputs.append(_info(name, array.dtype, array.shape))
            continue
        writer.write(op, inst.iexpr.args, name)
    outputs = [_info(n, _numpy(ir.vars[n]), ir.vars[n].shape) for n in ir.leaf_var()]
    graph = helper.make_graph(
        writer.nodes,
        "nnsmith",
        inputs,
        [value for value in outputs if value.name not in fed],
        [numpy_helper.from_array(array, name) for name, array in writer.stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)
    if not fed or not graph.output:
        raise NotApplicable
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise NotApplicable from error
    return RandomGraph(model, fed)


def _info(name: str, dtype: np.dtype, shape: Sequence[Any]) -> onnx.ValueInfoProto:
    elem_type = helper.np_dtype_to_tensor_dtype(dtype)
    return helper.make_tensor_value_info(name, elem_type, list(map(int, shape)))


def _numbers(writer: _Writer, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "f":
        return np.asarray(writer.numbers.uniform(-2, 2, shape)).astype(dtype)
    low, high = (0, 2) if dtype.kind == "b" else (-5, 6)
    return np.asarray(writer.numbers.integers(low, high, shape)).astype(dtype)
