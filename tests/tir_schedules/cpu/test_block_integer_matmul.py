"""Products of rows rounded in blocks: structure of the kernel, and what is left alone."""

import numpy as np
import pytest
from tvm import te, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.cpu.block_integer_matmul import BlockIntegerMatmul, panel_of
from tvm_ext.tir_schedules.operators.block_integers import BlockIntegers


def machine(target, threads=2):
    return resolve_target(target).with_threads(threads)


def scheduled(target, threads=2, columns=72):
    own = machine(target, threads)
    compute = BlockIntegers(96, columns, 32, panel_of(own), 8)
    rows = tirx.Var("rows", "int64")
    return BlockIntegerMatmul().apply(compute.function([rows, 96]), own).mod["main"]


@pytest.mark.extended
def test_products_are_those_of_an_instruction():
    assert "vpdpbusd" in scheduled("avx512-amx").script()


@pytest.mark.extended
def test_products_of_four_bits_do_not_saturate_in_pairs():
    """Twice 15 * 127 is a number of 16 bits; pairs of pairs are added in 32."""
    script = scheduled("avx2").script()
    assert "llvm.x86.avx2.pmadd.ub.sw" in script
    assert script.count("pmadd.ub.sw") == script.count("pmadd.wd")


def test_panels_are_shared_by_threads():
    kinds = {loop.kind for loop in nodes(scheduled("avx512-amx").body, tirx.For)}
    assert tirx.ForKind.PARALLEL in kinds
    alone = {loop.kind for loop in nodes(scheduled("avx512-amx", threads=1).body, tirx.For)}
    assert tirx.ForKind.PARALLEL not in alone


def test_other_functions_and_machines_are_left_alone():
    x = te.placeholder((4, 96), "float32", "x")
    y = te.compute((4, 96), lambda i, j: x[i, j] + 1.0, "y")
    with pytest.raises(NotApplicable, match="no product with rows"):
        BlockIntegerMatmul().apply(te.create_prim_func([x, y]), machine("avx512-amx"))
    for target in ("x86-64", "aarch64-neon"):
        with pytest.raises(NotApplicable, match="products of bytes"):
            scheduled(target)


def test_words_hold_scale_zero_point_and_integers():
    compute = BlockIntegers(16, 3, 8, 2)
    assert compute.shape == (2, 2, 3, 2)
    integers = np.tile(np.arange(16)[:, None], (1, 3))
    scale = np.array([[1, 2, 3], [4, 5, 6]], "float32")
    words = compute.packed(integers, np.full((2, 3), 7), scale)
    assert words[0, 0, 0].view("float32").tolist() == [1, 2]
    assert words[1, 1, 0].view("float32").tolist() == [6, 0]
    assert words[0, 0, 1].tolist() == [7, 7]
    assert hex(words[0, 0, 2, 0]) == "0x76543210"
    assert hex(words[0, 1, 2, 1]) == "0xfedcba98"
