"""Every kind of operator that a plan carries channels last through, with its numbers."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import tvm
from random_numbers import RANDOM
from tvm import relax
from unoptimised import machine_of

from tvm_ext.hardware.cost_model import Work
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.layout_planning import LayoutPlanning
from tvm_ext.relay_passes.layout_roles import Role, role_of


class LastIsFree:
    """A machine on which channels last always pays."""

    def seconds(self, work: Work) -> float:
        return work.flops * (1.0 / work.vector_fraction - 1.0) + 1.0

    def conversion_seconds(self, nbytes: float) -> float:
        return nbytes * 1e-9

    def vector_lanes(self, dtype: str) -> int:
        return 8


def constant(*shape: int, dtype: str = "float32") -> relax.Expr:
    return relax.const(RANDOM.standard_normal(shape).astype(dtype))


def image(ndim: int) -> relax.Var:
    return relax.Var("x", relax.TensorType((2, 8, 5, 6, 7)[:ndim], "float32"))


def convolved(value: relax.Expr, ndim: int) -> relax.Expr:
    convolve = (relax.op.nn.conv1d, relax.op.nn.conv2d, relax.op.nn.conv3d)[ndim - 3]
    channels = int(value.ty.shape[1])
    return convolve(value, constant(8, channels, *(1,) * (ndim - 2)))


def between_convolutions(ndim: int, make: Callable[[relax.Expr], relax.Expr]) -> tvm.IRModule:
    """x -> convolution -> make -> convolution, when there is still an image, -> result."""
    x = image(ndim)
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(convolved(x, ndim))
            made = builder.emit(make(first))
            if isinstance(made.ty, relax.TupleType):
                made = builder.emit(relax.TupleGetItem(made, 1))
            if made.ty.ndim == ndim:
                made = builder.emit(convolved(made, ndim))
            result = builder.emit_output(made)
        builder.emit_func_output(result)
    return builder.get()


def operators(mod: tvm.IRModule) -> Counter:
    names: Counter = Counter()

    def visit(expr: relax.Expr) -> None:
        if operator_name(expr):
            names[operator_name(expr)] += 1

    relax.analysis.post_order_visit(mod["main"], visit)
    return names


nn = relax.op.nn
FOLLOWING = {
    "sigmoid": (4, relax.op.sigmoid),
    "clip": (4, lambda x: relax.op.clip(x, -0.5, 0.5)),
    "leakyrelu": (4, lambda x: nn.leakyrelu(x, 0.2)),
    "softplus": (4, nn.softplus),
    "where": (
        4,
        lambda x: relax.op.where(relax.op.greater(x, relax.const(0.0)), x, constant(8, 1, 1)),
    ),
    "cast": (4, lambda x: relax.op.astype(x, "float32")),
    "add_scalar": (4, lambda x: relax.op.add(x, relax.const(2.0, "float32"))),
    "subtract_from_constant": (4, lambda x: relax.op.subtract(constant(8, 1, 1), x)),
    "multiply_column": (4, lambda x: relax.op.multiply(x, constant(6))),
    "maximum_full": (4, lambda x: relax.op.maximum(constant(2, 8, 5, 6), x)),
    "square_sum": (4, lambda x: relax.op.multiply(x, x)),
    "max_pool2d": (4, lambda x: nn.max_pool2d(x, (2, 3), padding=(1, 0))),
    "avg_pool2d": (4, lambda x: nn.avg_pool2d(x, (2, 2), strides=(2, 1), ceil_mode=True)),
    "adaptive_avg_pool2d": (4, lambda x: nn.adaptive_avg_pool2d(x, (2, 3))),
    "max_pool1d": (3, lambda x: nn.max_pool1d(x, 2)),
    "avg_pool3d": (5, lambda x: nn.avg_pool3d(x, (2, 1, 2))),
    "mean_kept": (4, lambda x: relax.op.mean(x, [2, 3], keepdims=True)),
    "max_over_channels": (4, lambda x: relax.op.max(x, [-3], keepdims=True)),
    "softmax_channels": (4, lambda x: nn.softmax(x, 1)),
    "log_softmax_columns": (4, lambda x: nn.log_softmax(x, -1)),
    "prelu": (4, lambda x: nn.prelu(x, constant(8), 1)),
    "batch_norm": (4, lambda x: relax.TupleGetItem(batch_norm(x), 0)),
    "instance_norm": (4, lambda x: nn.instance_norm(x, constant(8), constant(8), 1, [2, 3])),
    "group_norm": (4, lambda x: nn.group_norm(x, constant(8), constant(8), 2, 1, [2, 3])),
    "layer_norm_columns": (4, lambda x: nn.layer_norm(x, constant(6), constant(6), [-1])),
    "concat_channels": (4, lambda x: relax.op.concat([x, constant(2, 3, 5, 6), x], 1)),
    "concat_rows": (4, lambda x: relax.op.concat([constant(2, 8, 5, 6), x], -2)),
    "split": (4, lambda x: relax.op.split(x, 2, 1)),
    "strided_slice": (4, lambda x: relax.op.strided_slice(x, [1, 3], [0, 1], [6, 6], [2, 1])),
    "pad": (4, lambda x: nn.pad(x, [0, 0, 1, 2, 3, 0, 0, 1], pad_value=0.5)),
    "reflect_pad": (4, lambda x: nn.pad(x, [0, 0, 0, 0, 1, 2, 2, 1], "reflect")),
    "resize2d": (4, lambda x: relax.op.image.resize2d(x, relax.ShapeExpr([9, 7]))),
    "flip": (4, lambda x: relax.op.flip(x, 1)),
    "tile": (4, lambda x: relax.op.tile(x, [1, 2, 1, 3])),
    "repeat": (4, lambda x: relax.op.repeat(x, 2, 1)),
    "quantize": (4, lambda x: quantized(x, constant(8), np.arange(8), 1)),
    "quantize_rows": (4, lambda x: quantized(x, constant(5), np.arange(5), -2)),
    "gather_elements": (4, lambda x: relax.op.gather_elements(x, indices(2, 8, 3, 6), 2)),
}
CLOSING = {
    "mean": (4, lambda x: relax.op.mean(x, [2, 3])),
    "mean_over_channels": (4, lambda x: relax.op.mean(x, [1])),
    "sum_of_all": (4, lambda x: relax.op.sum(x)),
    "mean_1d": (3, lambda x: relax.op.mean(x, [-1])),
}

OPAQUE = {
    "reshape": (4, lambda x: relax.op.reshape(x, (2, 8, 6, 5))),
    "matmul": (4, lambda x: relax.op.matmul(x, constant(6, 6))),
    "stack": (4, lambda x: relax.op.max(relax.op.stack([x, x], 2), [0])),
    "expand_dims": (4, lambda x: relax.op.expand_dims(x, [2])),
    "nn.conv2d_transpose": (4, lambda x: nn.conv2d_transpose(x, constant(8, 8, 2, 2))),
}


def batch_norm(x: relax.Expr) -> relax.Expr:
    mean, variance = constant(8), relax.op.abs(constant(8))
    return nn.batch_norm(x, constant(8), constant(8), mean, variance, 1, training=False)


def indices(*shape: int) -> relax.Expr:
    return relax.const(RANDOM.integers(0, 5, shape).astype("int64"))


def quantized(x: relax.Expr, scale: relax.Expr, zero: np.ndarray, axis: int) -> relax.Expr:
    scale = relax.op.add(relax.op.abs(scale), relax.const(0.1, "float32"))
    zero_point = relax.const(zero.astype("int8"))
    small = relax.op.quantize(x, scale, zero_point, axis, "int8")
    return relax.op.dequantize(small, scale, zero_point, axis, "float32")


@dataclass(frozen=True)
class PlannedModule:
    """A module before and after planning."""

    mod: tvm.IRModule
    planned: tvm.IRModule


@pytest.fixture(scope="module")
def cases() -> dict[str, PlannedModule]:
    made = {}
    for name, (ndim, make) in {**FOLLOWING, **CLOSING, **OPAQUE}.items():
        mod = between_convolutions(ndim, make)
        made[name] = PlannedModule(mod, LayoutPlanning(machine=LastIsFree())(mod))
    return made


@pytest.fixture(scope="module")
def machine(cases: dict[str, PlannedModule]) -> relax.VirtualMachine:
    """All modules compiled as one, which is quicker."""
    functions = {}
    for name, case in cases.items():
        for prefix, mod in (("before", case.mod), ("after", case.planned)):
            symbol = f"{prefix}_{name}"
            functions[symbol] = mod["main"].with_attr("global_symbol", symbol)
    mod = relax.transform.DecomposeOpsForInference()(tvm.IRModule(functions))
    return machine_of(relax.transform.LegalizeOps()(mod))


def assert_equal_results(name: str, case: PlannedModule, machine: relax.VirtualMachine) -> None:
    shape = [int(extent) for extent in case.mod["main"].params[0].ty.shape]
    x = tvm.runtime.tensor(RANDOM.standard_normal(shape).astype("float32"))
    before, after = machine[f"before_{name}"](x), machine[f"after_{name}"](x)
    np.testing.assert_allclose(after.numpy(), before.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.extended
@pytest.mark.parametrize("name", FOLLOWING)
def test_operator_works_with_channels_last(
    name: str, cases: dict[str, PlannedModule], machine: relax.VirtualMachine
) -> None:
    case = cases[name]
    # The input and the result, which is a reshape where both sides of its image are 1.
    moved = 1 if name == "mean_kept" else 2
    assert operators(case.planned)["relax.permute_dims"] == moved
    assert_equal_results(name, case, machine)


@pytest.mark.extended
@pytest.mark.parametrize("name", CLOSING)
def test_operator_that_ends_an_image_needs_no_conversion(
    name: str, cases: dict[str, PlannedModule], machine: relax.VirtualMachine
) -> None:
    case = cases[name]
    assert operators(case.planned)["relax.permute_dims"] == 1
    assert_equal_results(name, case, machine)


@pytest.mark.parametrize("name", OPAQUE)
def test_operator_that_needs_channels_first_gets_them(
    name: str, cases: dict[str, PlannedModule], machine: relax.VirtualMachine
) -> None:
    case = cases[name]
    assert not case.planned.same_as(case.mod)
    assert operators(case.planned)[f"relax.{name}"] == 1
    assert_equal_results(name, case, machine)


def test_roles() -> None:
    x = image(4)

    def role(call: relax.Expr) -> Role:
        return role_of(relax.BlockBuilder().normalize(call))

    assert role(relax.op.tanh(x)) is Role.FOLLOWS
    assert role(relax.op.mean(x, [2, 3])) is Role.CLOSES
    assert role(relax.op.mean(x, [2])) is Role.FOLLOWS  # a row has channels last as well
    assert role(relax.op.expand_dims(x, [2])) is Role.OPAQUE
    assert role(relax.op.reshape(x, (16, 30))) is Role.OPAQUE
    assert role(relax.op.add(x, relax.Var("v", relax.TensorType((6,), "float32")))) is Role.OPAQUE
    assert role(nn.conv2d_transpose(x, constant(8, 8, 1, 1))) is Role.OPAQUE
