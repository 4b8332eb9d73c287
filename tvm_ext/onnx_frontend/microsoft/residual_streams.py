"""Residual streams of com.microsoft in default operators: sums with gates, norms of branches.

Networks with hyper-connections keep several streams beside each other, ``[..., streams, width]``
or flat, and mix them around every layer. The formulas are those of ONNX Runtime's schemas.
"""

import math

import numpy as np
import onnx_ir as ir

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.onnx_frontend.microsoft.attention import last_size, rank
from tvm_ext.onnx_frontend.microsoft.builder import Builder, type_of
from tvm_ext.onnx_frontend.microsoft.fused import over_root_mean_square

_Results = list[ir.Value | None]
_FLOAT = ir.DataType.FLOAT


def gated_add(b: Builder) -> _Results:
    """``X + Y * gate``, of which the gate has one number for each row."""
    if b.optional(3) is not None:
        raise NotApplicable("a gate that is projected (gate_weight)")
    return [b.op("Add", b.input(0), b.op("Mul", b.input(1), b.input(2)))]


def scaled_silu(b: Builder) -> _Results:
    """``z * sigmoid(z)`` of the scaled input."""
    x, scale = b.input(0), b.optional(1)
    factor = b.number(b.attribute("alpha", 1.0)) if scale is None else b.cast(scale, type_of(x))
    scaled = b.op("Mul", x, factor)
    return [b.op("Mul", scaled, b.op("Sigmoid", scaled))]


def branchwise_rms_norm(b: Builder) -> _Results:
    """Each branch divided by its root mean square, times a scale."""
    x, scale = b.input(0), b.optional(1)
    rows = _branches(b, b.cast(x, _FLOAT))
    made = over_root_mean_square(b, rows, b.float32(b.attribute("epsilon", 1e-5)))
    if scale is not None:
        scale, width = b.cast(scale, _FLOAT), last_size(x) // _flat_branches(b)
        if rank(b.input(1)) == 1 and last_size(b.input(1)) != width:
            scale = b.op("Reshape", scale, b.constant(np.array([-1, width])))
        made = b.op("Mul", made, scale)
    return [b.cast(b.op("Reshape", made, b.op("Shape", x)), type_of(x))]


def hyper_connection_pre_mix(b: Builder) -> _Results:
    """The sum of all streams, each times its gate."""
    x, gate = b.input(0), b.input(1)
    rows = _branches(b, b.cast(x, _FLOAT))
    total = b.op("Mul", rows, _gate(b, gate, x))
    grouped = _flat_branches(b) == 1
    axis = len(x.shape or ()) - (2 if grouped else 1)
    summed = b.total(total, axis)
    factor = b.float32(b.attribute("reduction_scale", 1.0))
    return [b.cast(b.op("Mul", summed, factor), type_of(x))]


def hyper_connection_post_mix(b: Builder) -> _Results:
    """All streams mixed by a matrix, and to each what a layer gave, times its gate."""
    x, made, mix = b.input(0), b.input(1), b.optional(3)
    rows = _branches(b, b.cast(x, _FLOAT))
    if mix is not None:
        rows = b.op("MatMul", b.cast(b.transposed(mix), _FLOAT), rows)
    if made.shape is None:
        raise NotApplicable("the rank of its input is not known")
    shared = b.unsqueezed(b.cast(made, _FLOAT), len(made.shape) - 1)
    total = b.op("Add", rows, b.op("Mul", _gate(b, b.input(2), x), shared))
    return [b.cast(b.op("Reshape", total, b.op("Shape", x)), type_of(x))]


def engram_gate(b: Builder) -> _Results:
    """A value for all streams, each times a gate that compares its key and its query."""
    key, query, value = (b.cast(b.input(index), _FLOAT) for index in range(3))
    epsilon, kind = b.float32(b.attribute("epsilon", 1e-5)), type_of(b.input(0))
    width = last_size(b.input(0))
    key, query = (
        b.op("Mul", over_root_mean_square(b, rows, epsilon), b.cast(b.input(index), _FLOAT))
        for rows, index in ((key, 3), (query, 4))
    )
    both = b.unsqueezed(b.total(b.op("Mul", key, query), 3), 3)
    both = b.op("Mul", both, b.float32(1 / math.sqrt(width)))
    root = b.op("Sqrt", b.op("Max", b.op("Abs", both), b.float32(1e-6)))
    gate = b.op("Sigmoid", b.op("Mul", b.op("Sign", both), root))
    gated = b.op("Mul", gate, b.unsqueezed(value, 2))
    if b.optional(5) is None or not b.used(1):
        return [b.cast(gated, kind), None]
    scale = b.cast(b.input(5), _FLOAT)
    normed = b.op("Mul", over_root_mean_square(b, gated, epsilon), scale)
    return [b.cast(gated, kind), b.cast(normed, kind)]


def _flat_branches(b: Builder) -> int:
    """How many branches stand side by side in a row; 1 where they have an axis."""
    return int(b.attribute("num_branches", 0)) or 1


def _branches(b: Builder, rows: ir.Value) -> ir.Value:
    """With an axis for the branches."""
    count = _flat_branches(b)
    if count == 1:
        return rows
    width = last_size(b.input(0)) // count
    kept = b.sliced(b.op("Shape", rows), 0, -1)
    sizes = b.op("Concat", kept, b.constant(np.array([count, width])), axis=0)
    return b.op("Reshape", rows, sizes)


def _gate(b: Builder, gate: ir.Value, streams: ir.Value) -> ir.Value:
    """Of one number for each branch, or for each element of it."""
    flat = _flat_branches(b) > 1
    axes, own = rank(streams), rank(gate)
    if axes is None or own is None:
        raise NotApplicable("the rank of its input is not known")
    grouped = axes + flat
    made = b.cast(gate, _FLOAT)
    if own == grouped:
        return made
    if flat and last_size(gate) == last_size(streams):
        return _branches(b, made)
    return b.unsqueezed(made, own)
