"""MoE and QMoE of com.microsoft: each token goes through those experts that its router chose.

Routing, activations and the sum are operators of the default domain. A product of a token with the
weights of its experts is an operator of a domain of our own, whose kernel reads the weights where
they are: gathered first, they would be written and read once more.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from tvm_ext.configs.errors import FormError, NotApplicable
from tvm_ext.onnx_frontend.microsoft.attention import last_size
from tvm_ext.onnx_frontend.microsoft.builder import Builder, stored, type_of
from tvm_ext.onnx_frontend.microsoft.fused import gelu_by_tanh
from tvm_ext.onnx_frontend.microsoft.quantized import unpacked
from tvm_ext.onnx_frontend.onnx_graph import INTERNAL

_Results = list[ir.Value | None]
# Rows, the experts of each, and the number of a layer.
_Product: TypeAlias = Callable[[ir.Value, ir.Value, int], ir.Value]
_FLOAT = ir.DataType.FLOAT
_MAY_BE_PACKED = (2, 4, 8)


def moe(b: Builder) -> _Results:
    """Experts of floating-point weights."""
    weights = [(b.optional(index), b.optional(index + 1)) for index in (2, 4, 6)]

    def product(rows: ir.Value, places: ir.Value, layer: int) -> ir.Value:
        matrix, bias = weights[layer]
        return _product(b, rows, places, [matrix], bias, 0)

    return _mixed(b, product, weights[2][0] is not None, None)


def qmoe(b: Builder) -> _Results:
    """Experts whose weights take 2, 4 or 8 bits each, with a scale for each row or block."""
    kind = b.attribute("quant_type", "int")
    if kind != "int":
        raise NotApplicable(f"quant_type {kind}")
    common = b.attribute("expert_weight_bits", 4)
    bits = [b.attribute(f"fc{n}_expert_weight_bits", common) for n in (1, 2, 3)]
    if any(one not in _MAY_BE_PACKED for one in bits):
        raise NotApplicable(f"expert_weight_bits {bits}")
    if any(b.optional(index) is not None for index in range(15, 21)):
        raise NotApplicable("scales of activations, or one scale for each expert")

    def product(rows: ir.Value, places: ir.Value, layer: int) -> ir.Value:
        matrix, scales, bias = (b.optional(2 + 3 * layer + part) for part in range(3))
        if scales is None:
            raise NotApplicable("no scales")
        zeros = _zero_points(b, b.optional(11 + layer), scales, bits[layer])
        return _product(b, rows, places, [matrix, scales, zeros], bias, bits[layer])

    return _mixed(b, product, b.optional(8) is not None, b.optional(14))


def group_router(b: Builder) -> _Results:
    """The logarithms of the sigmoids of chosen experts, and a number for all others.

    Of each group the largest are added up, and only experts of the best groups may be chosen.
    """
    if b.optional(2) is not None or any(b.used(index) for index in (1, 2)):
        raise NotApplicable("scores of all experts as results, or a projection")
    kind, experts, groups = type_of(b.input(0)), last_size(b.input(1)), b.attribute("n_group", 1)
    scores = b.op("Reshape", b.cast(b.input(0), _FLOAT), b.constant(np.array([-1, experts])))
    scores = b.op("Sigmoid", scores)
    biased = b.op("Add", scores, b.input(1))
    sizes = b.constant(np.array([0, groups, experts // groups]))
    apart = b.op("Reshape", biased, sizes)
    added = min(b.attribute("group_topk", 2), experts // groups)
    best = b.total(_largest(b, apart, added)[0], 2)
    allowed = _among(b, _largest(b, best, b.attribute("topk_group", 1))[1], groups)
    lowest = b.float32(float(np.finfo(np.float32).min))
    left = b.op("Where", b.unsqueezed(allowed, 2), apart, lowest)
    left = b.op("Reshape", left, b.constant(np.array([-1, experts])))
    chosen = _among(b, _largest(b, left, b.required("top_k"))[1], experts)
    logarithm = b.op("Log", b.op("Max", scores, b.float32(1e-20)))
    sentinel = b.float32(b.attribute("router_sentinel", -10_000.0))
    return [b.cast(b.op("Where", chosen, logarithm, sentinel), kind)]


def _largest(b: Builder, values: ir.Value, count: int) -> list[ir.Value]:
    return list(b.ops("TopK", 2, [values, b.constant(np.array([count]))], {"axis": -1}))


def _among(b: Builder, places: ir.Value, count: int) -> ir.Value:
    """Which of the numbers below ``count`` are in each row."""
    same = b.op("Equal", b.unsqueezed(places, 2), b.constant(np.arange(count)))
    found = b.total(b.cast(same, ir.DataType.INT32), 1)
    return b.op("Greater", found, b.constant(np.array(0, np.int32)))


def _mixed(b: Builder, product: _Product, gated: bool, mixing: ir.Value | None) -> _Results:
    """The sum of what a token's experts give, by their weights.

    ``product`` multiplies rows with the weights of a layer: 0, 1, or 2 for gates of their own.
    """
    x = b.input(0)
    rows = b.cast(b.op("Reshape", x, b.constant(np.array([-1, last_size(x)]))), _FLOAT)
    share, places = _routed(b, mixing)
    hidden = product(rows, places, 0)
    other = product(rows, places, 2) if gated else None
    made = product(_activated(b, hidden, other), places, 1)
    total = b.total(b.op("Mul", made, b.unsqueezed(share, 2)), 1)
    return [b.cast(b.op("Reshape", total, b.op("Shape", x)), type_of(x))]


def _routed(b: Builder, mixing: ir.Value | None) -> tuple[ir.Value, ir.Value]:
    """The weights of each token's experts and which these are, both ``[tokens, k]``."""
    scores = b.op("Softmax", b.cast(b.input(1), _FLOAT), axis=-1)
    share, places = _largest(b, scores, b.attribute("k", 4))
    if mixing is not None:
        share = b.op("GatherElements", b.cast(mixing, _FLOAT), places, axis=1)
    # QMoE of ONNX Runtime makes the router's own add up to 1 whatever its attribute says.
    always = b.node.op_type == "QMoE" and mixing is None
    if always or b.attribute("normalize_routing_weights", 0):
        share = b.op("Div", share, b.unsqueezed(b.total(share, 1), 1))
    return share, places


def _activated(b: Builder, hidden: ir.Value, other: ir.Value | None) -> ir.Value:
    name = b.attribute("activation_type", "relu")
    if b.attribute("swiglu_limit_after_activation", 0):
        raise NotApplicable("swiglu_limit_after_activation")
    if name == "swiglu":
        return _swiglu(b, hidden, other)
    if other is not None and name != "silu":
        raise NotApplicable(f"gates beside the activation {name}")
    if name == "relu":
        return b.op("Relu", hidden)
    if name == "gelu":
        return gelu_by_tanh(b, hidden, b.float32)
    if name == "silu":
        made = b.op("Mul", hidden, b.op("Sigmoid", hidden))
        return made if other is None else b.op("Mul", made, other)
    if name != "identity":
        raise NotApplicable(f"activation {name}")
    return hidden


def _swiglu(b: Builder, hidden: ir.Value, other: ir.Value | None) -> ir.Value:
    """``g * sigmoid(alpha * g) * (l + beta)``, g from above and l from both sides limited."""
    gate, linear = _gate_and_linear(b, hidden, other)
    limit = b.attribute("swiglu_limit", None)
    if limit is not None:
        gate = b.op("Min", gate, b.float32(limit))
        linear = b.op("Max", b.op("Min", linear, b.float32(limit)), b.float32(-limit))
    alpha, beta = b.attribute("activation_alpha", 1.0), b.attribute("activation_beta", 0.0)
    opened = b.op("Sigmoid", b.op("Mul", gate, b.float32(alpha)))
    return b.op("Mul", b.op("Mul", gate, opened), b.op("Add", linear, b.float32(beta)))


def _gate_and_linear(
    b: Builder, hidden: ir.Value, other: ir.Value | None
) -> tuple[ir.Value, ir.Value]:
    """Two tensors, or one with pairs of the two, or one beside the other."""
    fusion = b.attribute("swiglu_fusion", 0)
    if fusion == 0 and other is not None:
        return hidden, other
    if fusion not in (1, 2):
        raise NotApplicable(f"swiglu_fusion {fusion} with{'' if other else 'out'} gates")
    sizes = [0, 0, -1, 2] if fusion == 1 else [0, 0, 2, -1]
    pairs = b.op("Reshape", hidden, b.constant(np.array(sizes)))
    axis = 3 if fusion == 1 else 2
    gate, linear = (
        b.op("Gather", pairs, b.constant(np.array(place)), axis=axis) for place in (0, 1)
    )
    return gate, linear


def _product(
    b: Builder,
    rows: ir.Value,
    places: ir.Value,
    weights: list[ir.Value | None],
    bias: ir.Value | None,
    bits: int,
) -> ir.Value:
    """``[tokens, k, outputs]``: each row times the weights of its experts, and their bias."""
    if weights[0] is None or weights[0].shape is None:
        raise NotApplicable("weights that are missing or of unknown sizes")
    block = b.attribute("block_size", 0)
    form = {"bits": bits, "block_size": block}
    made = b.op("ExpertMatMul", rows, places, *weights, domain=INTERNAL, **form)
    made.type = ir.TensorType(_FLOAT)
    made.shape = ir.Shape([None, b.attribute("k", 4), weights[0].shape[1]])
    if bias is None:
        return made
    return b.op("Add", made, b.op("Gather", b.cast(bias, _FLOAT), places, axis=0))


def _zero_points(
    b: Builder, packed: ir.Value | None, scales: ir.Value, bits: int
) -> ir.Value | None:
    """A float for each scale; None where it is the middle of the range."""
    if packed is None:
        return None
    arrays = stored(packed)
    if arrays is None or arrays[0] is None or scales.shape is None:
        raise NotApplicable("zero points that are computed")
    sizes = [int(size) for size in scales.shape if isinstance(size, int)]
    numbers = unpacked(arrays[0], bits)
    if len(sizes) != numbers.ndim or numbers.shape[-1] < sizes[-1]:
        raise FormError(
            f"its zero points have the sizes {list(arrays[0].shape)} beside scales of {sizes}, "
            "expected one for each scale"
        )
    return b.constant(numbers[..., : sizes[-1]].astype(np.float32))
