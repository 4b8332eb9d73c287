"""Kernels without a reduction."""

import pytest
from kernel_cases import MOVES, POINTWISE
from lowering import f32, kernel_of, kernels_of, loops_of, scalar_stores
from machines import GPU, MACHINE
from tvm import relax, s_tir, tirx
from tvm.relax.op import nn

from tvm_ext.tir_schedules.llvm.elementwise import Elementwise
from tvm_ext.tir_schedules.template import NotMine

op = relax.op


def applied(func: tirx.PrimFunc) -> tirx.PrimFunc:
    sch = Elementwise().apply(func, MACHINE)
    assert isinstance(sch, s_tir.Schedule)
    return sch.mod["main"]


def test_chain_is_one_parallel_vectorised_nest() -> None:
    func = kernel_of(
        lambda a, b: op.multiply(nn.relu(op.add(a, b)), b), f32(256, 4096), f32(256, 4096)
    )
    before = func.script()
    found = [(loop.kind, loop.extent) for loop in loops_of(applied(func))]
    assert found == [("parallel", 256 * 64), ("vectorized", 64)]
    assert func.script() == before


def test_every_output_of_a_split_has_its_own_nest() -> None:
    func = kernel_of(lambda x: op.split(x, 2, 1), f32(8, 64))
    assert [loop.extent for loop in loops_of(applied(func)) if loop.kind == "vectorized"] == [
        32,
        32,
    ]


@pytest.mark.parametrize("name", ["add relu", "bias nchw", "bias nhwc", "compare", "half"])
def test_no_scalar_code(name: str) -> None:
    (func,) = kernels_of(POINTWISE[name].expression, *POINTWISE[name].inputs).values()
    assert scalar_stores(applied(func), MACHINE) == 0


@pytest.mark.parametrize("name", ["concat outer", "concat first", "slice dense", "take"])
def test_no_scalar_moves(name: str) -> None:
    (func,) = kernels_of(MOVES[name].expression, *MOVES[name].inputs).values()
    assert scalar_stores(applied(func), MACHINE) == 0


def test_declines_a_reduction() -> None:
    found = Elementwise().apply(kernel_of(op.matmul, f32(3, 5), f32(5, 7)), MACHINE)
    assert found == NotMine("the kernel reduces or scans")


def test_declines_symbolic_extents() -> None:
    batch = tirx.Var("n", "int64")
    found = Elementwise().apply(kernel_of(op.exp, ((batch, 5), "float32")), MACHINE)
    assert isinstance(found, NotMine)
    assert "symbolic" in found.reason


def test_declines_a_gpu() -> None:
    found = Elementwise().apply(kernel_of(op.exp, f32(5)), GPU)
    assert found == NotMine("the target is not a CPU")
