"""Constant weights are packed by tiles, and only where that is safe."""

import numpy as np
import pytest
import tvm
from kernel_cases import nhwc
from lowering import f32, kernel_of
from machines import MACHINE
from tvm import relax, te, tirx
from unoptimised import built

from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.packing import PackedOperand
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel

op = relax.op


def scheduled(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, PackedOperand | None]:
    result, choice = schedule_kernel(func, MACHINE)
    return result, choice.packed


def shape_of(func: tirx.PrimFunc, parameter: int) -> tuple[int, ...]:
    return tuple(int(size) for size in func.params[parameter].shape)


def run(func: tirx.PrimFunc, *arrays: np.ndarray) -> np.ndarray:
    out = tvm.runtime.tensor(np.zeros(shape_of(func, len(arrays)), "float32"))
    built({"main": func})["main"](*map(tvm.runtime.tensor, arrays), out)
    return out.numpy()


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def test_pieces_go_outermost() -> None:
    array = np.arange(24).reshape(3, 8)
    assert PackedOperand(0, 1, 4).pack(array).tolist() == [
        array[:, :4].tolist(),
        array[:, 4:].tolist(),
    ]
    assert PackedOperand(0, 0, 1).pack(array).shape == (3, 8, 1)


@pytest.mark.parametrize("rows", [1, 5, 14])
def test_matmul_with_packed_weights(rows: int) -> None:
    x, w = random(rows, 20), random(20, 96)
    func = kernel_of(op.matmul, f32(rows, 20), f32(20, 96))
    result, packed = scheduled(func.with_attr(CONSTANTS_ATTRIBUTE, [1]))
    assert packed is not None
    assert (packed.parameter, packed.axis) == (1, 1)
    assert shape_of(result, 1) == (96 // packed.block, 20, packed.block)
    np.testing.assert_allclose(run(result, x, packed.pack(w)), x @ w, rtol=1e-5, atol=1e-5)


def test_convolution_packs_output_channels() -> None:
    func = kernel_of(nhwc, f32(1, 9, 9, 16), f32(3, 3, 16, 64), f32(64))
    _, packed = scheduled(func.with_attr(CONSTANTS_ATTRIBUTE, [1]))
    assert packed == PackedOperand(1, 3, 32)


@pytest.mark.parametrize("columns", [32, 96])
def test_what_a_group_or_a_batch_multiplies_is_one_stretch(columns: int) -> None:
    """Weights ``[inputs, groups, columns]`` of which a tile reads some columns of one group."""
    x = te.placeholder((28, 5, 20), name="x")
    w = te.placeholder((20, 5, columns), name="w")
    i = te.reduce_axis((0, 20), name="i")
    y = te.compute((28, 5, columns), lambda m, g, n: te.sum(x[m, g, i] * w[i, g, n], axis=i))
    func = te.create_prim_func([x, w, y]).with_attr(CONSTANTS_ATTRIBUTE, [1])
    result, packed = scheduled(func)
    assert packed == (PackedOperand(1, 1, 1) if columns == 32 else PackedOperand(1, 2, 32))
    given, weights = random(28, 5, 20), random(20, 5, columns)
    wanted = np.einsum("mgi,ign->mgn", given, weights)
    found = run(result, given, packed.pack(weights))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_left_in_rows() -> None:
    matmul = kernel_of(op.matmul, f32(14, 20), f32(20, 96))
    assert scheduled(matmul)[1] is None, "the weights are an input of the model"
    assert scheduled(matmul.with_attr(CONSTANTS_ATTRIBUTE, [0]))[1] is None, "not what columns read"
    narrow = kernel_of(op.matmul, f32(14, 20), f32(20, 32))
    assert scheduled(narrow.with_attr(CONSTANTS_ATTRIBUTE, [1]))[1] is None, "one tile: no pieces"
