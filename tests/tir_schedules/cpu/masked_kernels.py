"""Kernels in vectors beyond a border, their masks, and whether both compute the same."""

from collections.abc import Callable
from typing import Any

from lowering import assert_same, run
from machines import MACHINE
from tvm import s_tir, te, tirx

from tvm_ext.relay_passes.gemm_epilogue import GemmCompute
from tvm_ext.relay_passes.pad_output_channels import whole_vectors

SMALL_CACHE = {"l2_bytes": 1024}
PANELS = MACHINE.model_copy(update=SMALL_CACHE)

Epilogue = Callable[..., te.Tensor]
Index = Callable[[tirx.Var], Any]


def padded_product(
    left: tuple[int, ...], right: tuple[int, ...], dtype: str = "float32"
) -> list[te.Tensor]:
    """Two matrices and their product, computed with columns of zeros up to whole vectors."""
    a, b = te.placeholder(left, dtype, "a"), te.placeholder(right, dtype, "b")
    columns = right[-1]
    extra = whole_vectors(columns, MACHINE.vector_lanes(dtype)) - columns
    kernel = GemmCompute(False, False, dtype, columns=columns, extra_columns=extra)
    return [a, b, kernel.compute(a, b)]


def with_epilogue(epilogue: Epilogue, *others: te.Tensor) -> tirx.PrimFunc:
    """A kernel of a product with 197 columns and what is computed from each of its elements."""
    a, b, product = padded_product((40, 20), (20, 197))
    result = te.compute((40, 197), lambda i, j: epilogue(product[i, j], i, j), "result")
    return te.create_prim_func([a, b, *others, result])


def masks(func: tirx.PrimFunc) -> tuple[int, int]:
    """Masked loads and masked stores in a kernel."""
    script = func.script()
    return script.count("T.masked_load("), script.count("T.masked_store(")


def vectorised(*tensors: te.Tensor, lanes: int = 8) -> tirx.PrimFunc:
    """The last stage in vectors of ``lanes``, with a predicate where they do not divide it."""
    sch = s_tir.Schedule(te.create_prim_func(list(tensors)))
    block = sch.get_sblock(str(tensors[-1].op.name))
    _, vector = sch.split(sch.get_loops(block)[-1], factors=[None, lanes])
    sch.vectorize(vector)
    return sch.mod["main"]


def assert_numbers(func: tirx.PrimFunc, masked: tirx.PrimFunc) -> None:
    results = run({"plain": func, "masked": masked})
    assert_same(results["plain"], results["masked"], "masked")
