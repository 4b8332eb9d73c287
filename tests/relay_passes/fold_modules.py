"""Modules with batch normalisation, and what holds for each that is folded."""

from collections.abc import Callable

import numpy as np
import tvm
from random_numbers import RANDOM
from tvm import relax
from unoptimised import machine_of

from tvm_ext.configs.decision import Decision
from tvm_ext.relay_passes.conv_bn_relu_fold import ConvBnReluFold
from tvm_ext.relay_passes.graph_pass import recording

nn = relax.op.nn


Body = Callable[[relax.BlockBuilder, relax.Var], relax.Expr]


def rand(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RANDOM.uniform(-1, 1, shape).astype(dtype)


def const(*shape: int, dtype: str = "float32") -> relax.Expr:
    return relax.const(rand(*shape, dtype=dtype))


def build(shape: tuple, body: Body, dtype: str = "float32") -> tvm.IRModule:
    """A module whose main(x) is ``body``, in one dataflow block."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(list(shape), dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(body(builder, x))
        builder.emit_func_output(out)
    return builder.get()


def batch_norm(
    data: relax.Expr, channels: int, axis: int = 1, dtype: str = "float32", **options: float
) -> relax.Expr:
    """Batch normalisation for inference; TVM's default is training."""
    gamma, beta, mean = (const(channels, dtype=dtype) for _ in range(3))
    variance = relax.const((np.abs(rand(channels)) + 0.5).astype(dtype))
    return nn.batch_norm(data, gamma, beta, mean, variance, axis, training=False, **options)


def bn(builder: relax.BlockBuilder, data: relax.Expr, *args: int, **options: float) -> relax.Expr:
    return relax.TupleGetItem(builder.emit(batch_norm(data, *args, **options)), 0)


def op_names(mod: tvm.IRModule) -> list[str]:
    names = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            named = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op)
            names.append(value.op.name.rsplit(".", 1)[-1] if named else type(value).__name__)
    return names


def fold(mod: tvm.IRModule) -> tuple[tvm.IRModule, list[Decision]]:
    """Folds, and checks what holds for every graph pass."""
    before = mod.script(show_meta=True)
    with recording() as log:
        new = ConvBnReluFold()(mod)
    assert mod.script(show_meta=True) == before
    relax.analysis.well_formed(new)
    assert ConvBnReluFold()(new).same_as(new)
    return new, log


def evaluate(mod: tvm.IRModule, *inputs: np.ndarray) -> np.ndarray:
    lowered = relax.transform.LegalizeOps()(relax.transform.DecomposeOpsForInference()(mod))
    machine = machine_of(lowered)
    return machine["main"](*[tvm.runtime.tensor(value) for value in inputs]).numpy()


def assert_same_numbers(mod: tvm.IRModule, new: tvm.IRModule, x: np.ndarray) -> None:
    expected = evaluate(mod, x)
    tolerance = 2e-2 if expected.dtype == np.float16 else 2e-5
    np.testing.assert_allclose(evaluate(new, x), expected, rtol=tolerance, atol=tolerance)


def assert_refused(mod: tvm.IRModule, reason: str) -> None:
    new, log = fold(mod)
    assert new.same_as(mod)
    assert [decision.applied for decision in log] == [False]
    assert reason in log[0].reason
