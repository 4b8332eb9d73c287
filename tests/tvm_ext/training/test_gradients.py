"""Every gradient of ours beside central differences in float64."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from thoroughness import one_in
from tvm import relax
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator
from unoptimised import machine_of

from tvm_ext.training.gradients import register_gradients

# With float64 the differences have about ten digits.
_STEP, _TOLERANCE = 1e-5, 1e-7

_Build = Callable[..., relax.Expr]


def _attention_like(q: relax.Expr, k: relax.Expr) -> relax.Expr:
    return op.nn.softmax(op.matmul(q, op.permute_dims(k, [0, 2, 1])), -1)


# Name, operator, shapes of what it is differentiated by, and the range of values.
CASES: list[tuple[str, _Build, list[tuple[int, ...]], tuple[float, float]]] = [
    ("relu", op.nn.relu, [(3, 4)], (-1, 1)),
    ("leakyrelu", lambda x: op.nn.leakyrelu(x, 0.1), [(3, 4)], (-1, 1)),
    ("prelu", lambda x, a: op.nn.prelu(x, a, 1), [(3, 5, 2), (5,)], (-1, 1)),
    ("prelu of one", lambda x, a: op.nn.prelu(x, a, 1), [(3, 1, 2), (1,)], (-1, 1)),
    ("clip", lambda x: op.clip(x, -0.5, 0.25), [(4, 6)], (-1, 1)),
    ("erf", op.erf, [(3, 5)], (-2, 2)),
    ("rsqrt", op.rsqrt, [(3, 5)], (0.5, 2)),
    ("square", op.square, [(3, 5)], (-2, 2)),
    ("gelu", op.nn.gelu, [(3, 5)], (-2, 2)),
    ("gelu_tanh", op.nn.gelu_tanh, [(3, 5)], (-2, 2)),
    ("sigmoid", op.sigmoid, [(3, 5)], (-2, 2)),
    ("tanh", op.tanh, [(3, 5)], (-2, 2)),
    ("silu", op.nn.silu, [(3, 5)], (-2, 2)),
    ("abs", op.abs, [(3, 5)], (-1, 1)),
    ("tan", op.tan, [(3, 5)], (-1, 1)),
    ("sinh", op.sinh, [(3, 5)], (-1, 1)),
    ("cosh", op.cosh, [(3, 5)], (-1, 1)),
    ("asin", op.asin, [(3, 5)], (-0.8, 0.8)),
    ("acos", op.acos, [(3, 5)], (-0.8, 0.8)),
    ("atan", op.atan, [(3, 5)], (-2, 2)),
    ("asinh", op.asinh, [(3, 5)], (-2, 2)),
    ("acosh", op.acosh, [(3, 5)], (1.5, 3)),
    ("atanh", op.atanh, [(3, 5)], (-0.8, 0.8)),
    ("maximum", op.maximum, [(3, 5), (5,)], (-1, 1)),
    ("minimum", op.minimum, [(3, 5), (3, 1)], (-1, 1)),
    ("where", lambda a, b: op.where(op.greater(a, op.tanh(b)), a, b), [(3, 5), (3, 5)], (-1, 1)),
    ("where of fewer", lambda a, b: op.where(relax.const(np.tri(3, 5) > 0), a, b), [(), (3, 1)],
     (-1, 1)),
    ("max", lambda x: op.max(x, [1]), [(3, 5, 2)], (-1, 1)),
    ("min", lambda x: op.min(x, [0, 2], keepdims=True), [(3, 5, 2)], (-1, 1)),
    ("prod", lambda x: op.prod(x, [1]), [(3, 4)], (0.5, 1.5)),
    ("variance", lambda x: op.variance(x, [0, 2]), [(3, 4, 2)], (-1, 1)),
    ("slice", lambda x: op.strided_slice(x, [1], [1], [4]), [(3, 6)], (-1, 1)),
    ("slice of steps", lambda x: op.strided_slice(x, [0, 1], [1, 0], [6, 7], [2, 3]), [(6, 7)],
     (-1, 1)),
    ("slice from behind", lambda x: op.strided_slice(x, [1], [-1], [-8], [-2]), [(3, 7)], (-1, 1)),
    ("pad", lambda x: op.nn.pad(x, [1, 2, 0, 3]), [(3, 4)], (-1, 1)),
    ("flip", lambda x: op.flip(x, 1), [(3, 4)], (-1, 1)),
    ("squeeze", lambda x: op.squeeze(x, [1]), [(3, 1, 4)], (-1, 1)),
    ("broadcast_to", lambda x: op.broadcast_to(x, [2, 3, 4]), [(3, 1)], (-1, 1)),
    ("take", lambda x: op.take(x, relax.const(np.array([[2, 0], [2, 1]])), 0), [(4, 3)], (-1, 1)),
    ("take of an axis", lambda x: op.take(x, relax.const(np.array([2, 2, 0])), 1), [(2, 3, 4)],
     (-1, 1)),
    ("gather_elements", lambda x: op.gather_elements(x, relax.const(np.array([[2, 2], [0, 1]])), 1),
     [(2, 3)], (-1, 1)),
    ("matmul", op.matmul, [(2, 3, 4), (4, 5)], (-1, 1)),
    ("batched matmul", op.matmul, [(2, 3, 4), (2, 4, 5)], (-1, 1)),
    ("matmul of a batch and one item", op.matmul, [(2, 3, 4), (1, 4, 5)], (-1, 1)),
    ("matmul of a matrix and a batch", op.matmul, [(3, 4), (2, 4, 5)], (-1, 1)),
    ("matmul of a vector and a batch", op.matmul, [(4,), (2, 4, 5)], (-1, 1)),
    ("matmul of a batch and a vector", op.matmul, [(2, 3, 4), (4,)], (-1, 1)),
    ("matmul of batches of other axes", op.matmul, [(2, 1, 3, 4), (3, 4, 2)], (-1, 1)),
    ("matmul of vectors", op.matmul, [(4,), (4,)], (-1, 1)),
    ("attention", _attention_like, [(2, 3, 4), (2, 5, 4)], (-1, 1)),
    ("log_softmax", lambda x: op.nn.log_softmax(x, 1), [(3, 5)], (-2, 2)),
    ("layer_norm", lambda x, s, b: op.nn.layer_norm(x, s, b, [-1]), [(3, 6), (6,), (6,)], (-1, 1)),
    ("layer_norm of two", lambda x, s, b: op.nn.layer_norm(x, s, b, [1, 2]),
     [(3, 4, 2), (4, 2), (4, 2)], (-1, 1)),
    ("rms_norm", lambda x, s: op.nn.rms_norm(x, s, [-1]), [(3, 6), (6,)], (0.5, 1.5)),
    ("group_norm", lambda x, s, b: op.nn.group_norm(x, s, b, 2, 1, [2, 3]),
     [(2, 4, 3, 2), (4,), (4,)], (-1, 1)),
    ("batch_norm", lambda x, s, b, m, v: op.nn.batch_norm(x, s, b, m, v, -1, training=False)[0],
     [(2, 3, 4), (4,), (4,), (4,), (4,)], (0.2, 1)),
    ("batch_norm without scale or shift", lambda x, s, b: op.nn.batch_norm(
        x, s, b, op.mean(x, [0, 2]), op.variance(x, [0, 2]), 1, center=False, scale=False,
        training=False)[0], [(2, 3, 4), (3,), (3,)], (-1, 1)),
    ("conv1d", lambda x, w: op.nn.conv1d(x, w, strides=2, padding=1), [(2, 3, 8), (4, 3, 3)],
     (-1, 1)),
    ("conv2d", lambda x, w: op.nn.conv2d(x, w, padding=1), [(2, 3, 5, 6), (4, 3, 3, 3)], (-1, 1)),
    ("conv2d of one tap", op.nn.conv2d, [(2, 3, 5, 6), (4, 3, 1, 1)], (-1, 1)),
    ("conv2d of one tap and stride", lambda x, w: op.nn.conv2d(x, w, strides=2),
     [(2, 3, 5, 6), (4, 3, 1, 1)], (-1, 1)),
    ("conv2d of stride", lambda x, w: op.nn.conv2d(x, w, strides=[2, 3], padding=[1, 0, 0, 1]),
     [(2, 3, 7, 8), (4, 3, 3, 2)], (-1, 1)),
    ("conv2d of a stride above its window", lambda x, w: op.nn.conv2d(x, w, strides=3, padding=1),
     [(1, 2, 7, 8), (3, 2, 2, 2)], (-1, 1)),
    ("conv2d of groups", lambda x, w: op.nn.conv2d(x, w, padding=1, groups=2),
     [(2, 4, 4, 5), (6, 2, 3, 3)], (-1, 1)),
    ("conv2d of depth", lambda x, w: op.nn.conv2d(x, w, padding=1, strides=2, groups=4),
     [(1, 4, 6, 5), (4, 1, 3, 3)], (-1, 1)),
    ("conv2d with dilation", lambda x, w: op.nn.conv2d(x, w, padding=2, dilation=2),
     [(1, 2, 6, 6), (3, 2, 3, 3)], (-1, 1)),
    ("conv2d with wide padding", lambda x, w: op.nn.conv2d(x, w, padding=2),
     [(1, 2, 4, 4), (3, 2, 2, 1)], (-1, 1)),
    ("conv3d", lambda x, w: op.nn.conv3d(x, w, padding=1, strides=[1, 2, 1]),
     [(1, 2, 3, 4, 3), (2, 2, 3, 3, 3)], (-1, 1)),
    ("conv1d_transpose", lambda x, w: op.nn.conv1d_transpose(x, w, strides=2, padding=1),
     [(2, 3, 5), (3, 2, 4)], (-1, 1)),
    ("conv2d_transpose", lambda x, w: op.nn.conv2d_transpose(
        x, w, strides=2, padding=1, output_padding=1), [(1, 3, 4, 4), (3, 2, 3, 3)], (-1, 1)),
    ("max_pool2d", lambda x: op.nn.max_pool2d(x, 2, 2), [(2, 3, 6, 4)], (-1, 1)),
    ("max_pool2d that overlaps", lambda x: op.nn.max_pool2d(x, [3, 3], [2, 2], padding=1),
     [(1, 2, 7, 6)], (-1, 1)),
    ("max_pool1d", lambda x: op.nn.max_pool1d(x, 3, 1), [(2, 3, 8)], (-1, 1)),
    ("avg_pool2d", lambda x: op.nn.avg_pool2d(x, [3, 2], [2, 2], padding=1), [(1, 2, 7, 6)],
     (-1, 1)),
    ("avg_pool2d with padding", lambda x: op.nn.avg_pool2d(
        x, [3, 3], [2, 2], padding=1, count_include_pad=True), [(1, 2, 7, 6)], (-1, 1)),
    ("avg_pool3d", lambda x: op.nn.avg_pool3d(x, 2, 2), [(1, 2, 4, 4, 4)], (-1, 1)),
]  # fmt: skip


def _values(shapes: Sequence[tuple[int, ...]], between: tuple[float, float]) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    values = []
    for shape in shapes:
        # Far enough from each other that a step changes no order.
        places = rng.permutation(int(np.prod(shape))) + 0.5
        low, high = between
        values.append((low + (high - low) * places / places.size).reshape(shape))
    return values


def _forward(build: _Build, shapes: Sequence[tuple[int, ...]]) -> tvm.IRModule:
    """The sum of the operator's result times weights, so that no two gradients are equal."""
    params = [
        relax.Var(f"x{place}", relax.TensorType(list(shape), "float64"))
        for place, shape in enumerate(shapes)
    ]
    bb = relax.BlockBuilder()
    with bb.function("main", params):
        with bb.dataflow():
            y = bb.emit(build(*params))
            shape = [int(size) for size in y.ty.shape.values]
            weights = np.random.default_rng(3).uniform(0.5, 1.5, shape)
            total = bb.emit_output(op.sum(bb.emit(op.multiply(y, relax.const(weights, "float64")))))
        bb.emit_func_output(total)
    return bb.get()


# TVM computes normalisations in float32, or not at all for float64: here they are spelled out.


def _normalized(x: relax.Expr, axes: list[int], epsilon: float, is_centered: bool) -> relax.Expr:
    centered = op.subtract(x, op.mean(x, axes, keepdims=True)) if is_centered else x
    square = op.mean(op.multiply(centered, centered), axes, keepdims=True)
    return op.divide(centered, op.sqrt(op.add(square, relax.const(epsilon, "float64"))))


def _layer_norm(call: relax.Call) -> relax.Expr:
    x, scale, shift = call.args
    axes = [int(axis) for axis in call.attrs.axes]
    return op.add(op.multiply(_normalized(x, axes, call.attrs.epsilon, True), scale), shift)


def _rms_norm(call: relax.Call) -> relax.Expr:
    x, scale = call.args
    axes = [int(axis) for axis in call.attrs.axes]
    return op.multiply(_normalized(x, axes, call.attrs.epsilon, False), scale)


def _group_norm(call: relax.Call) -> relax.Expr:
    x, scale, shift = call.args
    items, channels, *rest = (int(size) for size in x.ty.shape.values)
    groups = int(call.attrs.num_groups)
    parts = op.reshape(x, [items, groups, channels // groups, *rest])
    axes = list(range(2, 3 + len(rest)))
    normal = op.reshape(_normalized(parts, axes, call.attrs.epsilon, True), x.ty.shape)
    scale, shift = (op.reshape(one, [channels, *[1] * len(rest)]) for one in (scale, shift))
    return op.add(op.multiply(normal, scale), shift)


_SPELLED = {"nn.layer_norm": _layer_norm, "nn.rms_norm": _rms_norm, "nn.group_norm": _group_norm}


@mutator
class _Spelled(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        made = super().visit_call_(call)
        name = getattr(made.op, "name", "").removeprefix("relax.")
        return self.builder_.normalize(_SPELLED[name](made)) if name in _SPELLED else made


def _program(mod: tvm.IRModule, name: str) -> Callable[..., Any]:
    for variable, function in mod.functions.items():
        if isinstance(function, relax.Function):
            mod[variable] = _Spelled(mod).visit_expr(function)
    mod = relax.transform.LegalizeOps()(mod)
    machine = machine_of(mod)

    def run(*arrays: np.ndarray) -> Any:
        return machine[name](*(tvm.runtime.tensor(array) for array in arrays))

    return run


@pytest.mark.parametrize(
    ("build", "shapes", "between"),
    one_in(8, [c[1:] for c in CASES], pytest.mark.extended),
    ids=[c[0] for c in CASES],
)
def test_gradient_is_the_limit_of_differences(
    build: _Build, shapes: list[tuple[int, ...]], between: tuple[float, float]
) -> None:
    register_gradients()
    mod = _forward(build, shapes)
    both = relax.transform.Gradient("main")(mod)
    run, arrays = _program(both, "main_adjoint"), _values(shapes, between)
    forward = _program(mod, "main")
    gradients = [one.numpy() for one in run(*arrays)[1]]
    rng = np.random.default_rng(11)
    for place, gradient in enumerate(gradients):
        assert gradient.shape == arrays[place].shape
        # Along some elements, and along a direction through all of them.
        directions = [rng.standard_normal(gradient.shape)]
        for element in rng.choice(gradient.size, min(4, gradient.size), replace=False):
            directions.append(np.eye(1, gradient.size, element).reshape(gradient.shape))
        for direction in directions:
            ends = []
            for sign in (1, -1):
                moved = list(arrays)
                moved[place] = arrays[place] + sign * _STEP * direction
                ends.append(float(forward(*moved).numpy()))
            expected = (ends[0] - ends[1]) / (2 * _STEP)
            assert np.sum(gradient * direction) == pytest.approx(
                expected, rel=_TOLERANCE, abs=_TOLERANCE
            )


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (op.abs, [-1, 0, 1]),
        (op.nn.relu, [0, 0, 1]),
        (lambda x: op.maximum(x, relax.const(0.0, "float64")), [0, 0.5, 1]),
        (lambda x: op.clip(x, 0, 9), [0, 1, 1]),
    ],
    ids=["abs", "relu", "maximum", "clip"],
)
def test_where_there_is_no_derivative(build: _Build, wanted: list[float]) -> None:
    register_gradients()
    bb, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((3,), "float64"))
    with bb.function("main", [x]):
        with bb.dataflow():
            total = bb.emit_output(op.sum(bb.emit(build(x))))
        bb.emit_func_output(total)
    both = relax.transform.Gradient("main")(bb.get())
    gradients = _program(both, "main_adjoint")(np.array([-2.0, 0.0, 3.0]))[1]
    np.testing.assert_array_equal(gradients[0].numpy(), wanted)
