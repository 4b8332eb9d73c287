"""Which blocks move into the blocks that use them."""

import tvm
from kernel_cases import nhwc
from lowering import f32, kernel_of
from tvm import relax, s_tir, tirx
from tvm.relax.op import nn

from tvm_ext.tir_schedules.analysis.buffer_access import MAX_NODES, count_calls, kernel_blocks
from tvm_ext.tir_schedules.inlining import inline_blocks, inlined_schedule

op = relax.op


def inlined(func: tirx.PrimFunc) -> list[str]:
    """Names of the blocks that are left."""
    sch = s_tir.Schedule(func)
    inline_blocks(sch)
    return [str(sch.get(block).name_hint) for block in kernel_blocks(sch)]


def body(func: tirx.PrimFunc, block: str) -> object:
    sch = s_tir.Schedule(func)
    return sch.get(sch.get_sblock(block)).body


def test_padding_of_a_conv_stays() -> None:
    func = kernel_of(lambda *v: nhwc(*v, padding=(1, 1)), f32(1, 5, 5, 3), f32(3, 3, 3, 7), f32(7))
    assert inlined(func) == ["pad_temp", "conv2d_nhwc", "compute"]


def test_copy_before_a_conv_goes() -> None:
    func = kernel_of(nhwc, f32(1, 5, 5, 3), f32(3, 3, 3, 7), f32(7))
    assert inlined(func) == ["conv2d_nhwc", "compute"]


def test_chain_becomes_one_block() -> None:
    func = kernel_of(lambda a, b: nn.relu(op.exp(op.add(a, b))), f32(3, 5), f32(3, 5))
    assert len(inlined(func)) == 1


def test_call_that_only_a_reduction_reads_goes() -> None:
    sch = s_tir.Schedule(kernel_of(lambda x: op.sum(op.exp(x), 1), f32(3, 5)))
    inline_blocks(sch)
    (block,) = kernel_blocks(sch)
    assert count_calls(sch.get(block).body) == 1


def test_call_that_a_reduction_and_another_block_read_is_computed_once() -> None:
    sch = s_tir.Schedule(kernel_of(lambda x: nn.softmax(x, 1), f32(3, 5)))
    inline_blocks(sch)
    assert sum(count_calls(sch.get(block).body) for block in kernel_blocks(sch)) == 1


def fused_exp_matmul(calls: bool) -> tirx.PrimFunc:
    """A producer whose every element a matmul reads many times."""
    from tvm import te

    a = te.placeholder((5, 7), name="a")
    b = te.placeholder((7, 9), name="b")
    first = te.compute((5, 7), lambda i, j: te.exp(a[i, j]) if calls else a[i, j] * 2.0, "first")
    k = te.reduce_axis((0, 7), "k")
    product = te.compute((5, 9), lambda i, j: te.sum(first[i, k] * b[k, j], k), "product")
    return te.create_prim_func([a, b, product])


def test_call_that_a_reduction_repeats_stays() -> None:
    assert inlined(fused_exp_matmul(calls=True)) == ["first", "product"]
    assert inlined(fused_exp_matmul(calls=False)) == ["product"]


def test_call_that_a_broadcast_repeats_stays() -> None:
    func = kernel_of(lambda a, b: op.add(op.exp(a), b), f32(5), f32(40, 5))
    assert len(inlined(func)) == 2
    cheap = kernel_of(lambda a, b: op.add(nn.relu(a), b), f32(5), f32(40, 5))
    assert len(inlined(cheap)) == 1


def test_growth_is_bounded() -> None:
    def chain(x: relax.Expr) -> relax.Expr:
        for _ in range(14):
            x = op.multiply(x, op.sigmoid(x))
        return x

    sch = s_tir.Schedule(kernel_of(chain, f32(3, 5)))
    inline_blocks(sch)
    blocks = kernel_blocks(sch)
    assert 1 < len(blocks) < 14
    assert all(count_calls(sch.get(block).body) < MAX_NODES for block in blocks)


def test_output_block_stays() -> None:
    func = kernel_of(lambda x: op.split(x, 2, 1), f32(3, 8))
    assert len(inlined(func)) == 2


def test_count_calls() -> None:
    assert count_calls(body(kernel_of(op.exp, f32(3)), "compute")) == 1
    assert count_calls(body(kernel_of(op.add, f32(3), f32(3)), "T_add")) == 0
    nested = tirx.exp(tirx.sqrt(tirx.Var("x", "float32")) + tirx.const(1.0))
    assert count_calls(nested) == 2
    picked = tirx.Select(tirx.Var("c", "bool"), tirx.exp(tirx.const(1.0)), tirx.const(2.0))
    assert count_calls(picked) == 1


def test_schedules_of_a_kernel_begin_alike_and_apart() -> None:
    func = kernel_of(lambda a, b: nn.relu(op.exp(op.add(a, b))), f32(3, 5), f32(3, 5))
    sch = s_tir.Schedule(func)
    inline_blocks(sch)
    first, second = inlined_schedule(func), inlined_schedule(func)
    tvm.ir.assert_structural_equal(first.mod, sch.mod)
    (block,) = kernel_blocks(first)
    first.fuse(*first.get_loops(block))
    tvm.ir.assert_structural_equal(second.mod, sch.mod)
