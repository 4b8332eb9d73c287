"""Before and after IR, numbers, and refusals of FuseCastIntoSoftmax."""

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax
from unoptimised import LLVM, machine_of

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.relay_passes.fuse_cast_into_softmax import FuseCastIntoSoftmax

Expression = Callable[[relax.BlockBuilder, relax.Var], relax.Expr]


def module_of(expression: Expression, dtype: str = "float16") -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([6, 40], dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(expression(builder, x))
        builder.emit_func_output(result)
    return builder.get()


def softmax(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    wide = builder.emit(relax.op.astype(x, "float32"))
    weights = builder.emit(relax.op.nn.softmax(wide, -1))
    return builder.emit(relax.op.astype(weights, str(x.ty.dtype)))


def rewritten(mod: tvm.IRModule, target: str = "nvidia-h100") -> tvm.IRModule:
    with compiling_for(resolve_target(target)):
        passes = [FuseCastIntoSoftmax(), relax.transform.DeadCodeElimination()]
        result = tvm.transform.Sequential(passes)(mod)
    relax.analysis.well_formed(result)
    return result


def evaluated(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    machine = machine_of(relax.build(relax.transform.LegalizeOps()(mod), LLVM))
    return machine["main"](tvm.runtime.tensor(x)).numpy()


def test_the_cast_is_in_the_kernel_and_numbers_stay():
    before = module_of(softmax)
    after = rewritten(before)
    text = after.script()
    assert text.count("R.astype") == 1
    assert "R.nn.softmax" not in text
    assert 'R.call_tir(cls.softmax, (x,), out_ty=R.Tensor((6, 40), dtype="float32"))' in text
    x = np.random.default_rng(0).standard_normal((6, 40)).astype("float16")
    np.testing.assert_array_equal(evaluated(after, x), evaluated(before, x))
    tvm.ir.assert_structural_equal(rewritten(after), after)


def test_bfloat16_too():
    assert "R.nn.softmax" not in rewritten(module_of(softmax, "bfloat16")).script()


def twice(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    wide = builder.emit(relax.op.astype(x, "float32"))
    return builder.emit(relax.op.add(relax.op.nn.softmax(wide, -1), wide))


@pytest.mark.parametrize(
    ("expression", "dtype", "target"),
    [
        (twice, "float16", "nvidia-h100"),
        (softmax, "float16", "avx2"),
        (softmax, "int32", "nvidia-h100"),
        (lambda builder, x: relax.op.nn.softmax(x, -1), "float32", "nvidia-h100"),
    ],
)
def test_others_stay(expression: Expression, dtype: str, target: str):
    before = module_of(expression, dtype)
    assert "R.nn.softmax" in rewritten(before, target).script()
