"""TVM's EliminateCommonSubexpr runs where something may be computed twice, and nowhere else."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm_ffi import structural_equal

from tvm_ext.relay_passes.common_subexpressions import eliminate_common_subexpr

ONES = np.ones((40, 40), "float32")
# The difference is among numbers that are not looked at.
ALMOST_ONES = ONES.copy()
ALMOST_ONES[20, 20] = 2


def two_products(first: np.ndarray, second: np.ndarray, **attributes: str) -> tvm.IRModule:
    """Two products of one input, the second with these attributes."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 40), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            one = builder.emit(relax.op.matmul(x, relax.const(first)))
            two = builder.emit(relax.op.matmul(x, relax.const(second), **attributes))
            result = builder.emit_output(relax.Tuple([one, two]))
        builder.emit_func_output(result)
    return builder.get()


ALIKE = two_products(ONES, ONES.copy())
UNLIKE = [
    two_products(ONES, 2 * ONES),
    two_products(ONES, ONES[:, :20].copy()),
    two_products(ONES, ONES, out_dtype="float64"),
]


@pytest.mark.parametrize("mod", [ALIKE, *UNLIKE, two_products(ONES, ALMOST_ONES)])
def test_gives_what_tvm_gives(mod):
    expected = relax.transform.EliminateCommonSubexpr()(mod)
    assert structural_equal(eliminate_common_subexpr()(mod), expected)


def test_products_that_are_alike_become_one():
    assert not structural_equal(eliminate_common_subexpr()(ALIKE), ALIKE)


@pytest.mark.parametrize("mod", UNLIKE)
def test_modules_without_repetitions_stay_as_they_are(mod):
    assert eliminate_common_subexpr()(mod).same_as(mod)
