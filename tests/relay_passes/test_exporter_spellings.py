"""Operators in parts, node by node as exporters write them, against ONNX Runtime at open sizes.

Taken from what tf2onnx 1.17 (TensorFlow 2.21, Keras 3.15), jax2onnx 0.17 (JAX 0.10, Flax 0.12) and
paddle2onnx 2.1 (Paddle 3.3) export.
"""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from operator_models import by_runtime
from unoptimised import HOST

import tvm_ext

RANDOM = np.random.default_rng(3)
ROW = {name: RANDOM.normal(size=6).astype("float32") for name in ("scale", "shift")}
EPS = np.array(1e-3, "float32")
LAST = np.array([-1])

KERAS_LAYER_NORM = """
    m = ReduceMean <axes = [-1]> (x)
    d = Sub (x, m)
    d2 = Mul (d, d)
    v = ReduceMean <axes = [-1]> (d2)
    ve = Add (v, eps)
    root = Sqrt (ve)
    inverse = Reciprocal (root)
    s = Mul (inverse, scale)
    xs = Mul (x, s)
    n = Neg (m)
    ns = Mul (n, s)
    rest = Add (ns, shift)
    y = Add (xs, rest)
"""

FLAX_LAYER_NORM = """
    m = ReduceMean <axes = [2], keepdims = 0> (x)
    x2 = Mul (x, x)
    mx2 = ReduceMean <axes = [2], keepdims = 0> (x2)
    m2 = Mul (m, m)
    difference = Sub (mx2, m2)
    zero = Constant <value_float = 0.0> ()
    v = Max (difference, zero)
    mk = Unsqueeze (m, last)
    vk = Unsqueeze (v, last)
    d = Sub (x, mk)
    ve = Add (vk, eps)
    root = Sqrt (ve)
    inverse = Reciprocal (root)
    s = Mul (inverse, scale)
    ds = Mul (d, s)
    y = Add (ds, shift)
"""

KERAS_UNIT_NORM = """
    x2 = Mul (x, x)
    total = ReduceSum (x2, last)
    root = Sqrt (total)
    inverse = Reciprocal (root)
    most = Constant <value_float = 1000000000000.0> ()
    limited = Min (inverse, most)
    y = Mul (x, limited)
"""

TF_LOG_SUM_EXP = """
    m = ReduceMax <axes = [-1]> (x)
    infinite = IsInf (m)
    nan = IsNaN (m)
    odd = Or (infinite, nan)
    even = Not (odd)
    even_number = Cast <to = 1> (even)
    chosen = Mul (even_number, m)
    zero = Constant <value_float = 0.0> ()
    odd_number = Cast <to = 1> (odd)
    nothing = Mul (zero, odd_number)
    guarded = Add (chosen, nothing)
    d = Sub (x, guarded)
    e = Exp (d)
    total = ReduceSum <keepdims = 0> (e, last)
    l = Log (total)
    row = Squeeze (guarded, last)
    y = Add (l, row)
"""

JAX_ROTARY = """
    turned = Transpose <perm = [2, 1, 0]> (x)
    even = Constant <value_ints = [0, 2, 4]> ()
    odd = Constant <value_ints = [1, 3, 5]> ()
    turned_a = Gather <axis = 0> (turned, even)
    turned_b = Gather <axis = 0> (turned, odd)
    a = Transpose <perm = [2, 1, 0]> (turned_a)
    b = Transpose <perm = [2, 1, 0]> (turned_b)
    angle = Constant <value_floats = [0.3, 0.1, 0.02]> ()
    s = Sin (angle)
    c = Cos (angle)
    ac = Mul (a, c)
    bs = Mul (b, s)
    as = Mul (a, s)
    bc = Mul (b, c)
    first = Sub (ac, bs)
    second = Add (as, bc)
    three = Constant <value_ints = [3]> ()
    first_pair = Unsqueeze (first, three)
    second_pair = Unsqueeze (second, three)
    pairs = Concat <axis = 3> (first_pair, second_pair)
    shape = Constant <value_ints = [0, 0, 6]> ()
    y = Reshape (pairs, shape)
"""

MODELS = {
    "Keras LayerNormalization": KERAS_LAYER_NORM,
    "Flax LayerNorm": FLAX_LAYER_NORM,
    "Keras UnitNormalization": KERAS_UNIT_NORM,
    "TensorFlow reduce_logsumexp": TF_LOG_SUM_EXP,
    "JAX rotary embedding": JAX_ROTARY,
}


def model_of(nodes: str) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, l, 6] x) => (float[] y) {{ {nodes} }}"""
    )
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    stored = {**ROW, "eps": EPS, "last": LAST}
    used = {name for node in proto.graph.node for name in node.input}
    arrays = [numpy_helper.from_array(a, name) for name, a in stored.items() if name in used]
    proto.graph.initializer.extend(arrays)
    return proto


@pytest.mark.parametrize("nodes", MODELS.values(), ids=MODELS)
def test_one_kernel_with_the_numbers_of_onnx_runtime(nodes):
    proto = model_of(nodes)
    compiled = tvm_ext.compile(proto, target=HOST)
    assert compiled.report.kernel_calls == 1
    for rows, length in ((2, 5), (1, 1)):
        feeds = {"x": RANDOM.normal(size=(rows, length, 6)).astype("float32") * 3}
        feeds["x"][0, 0] *= 1e-4
        wanted = by_runtime(proto, feeds)[0]
        np.testing.assert_allclose(compiled.run(feeds)["y"], wanted, rtol=1e-4, atol=1e-5)
