"""Copies of windows whose steps are split stay wide: TVM is told what holds for whole vectors."""

from cuda_kernels import scheduled, whole_source
from emulated_kernels import assert_emulated
from lowering import f32, kernel_of
from matmul_kernels import f16
from tvm import relax, s_tir, te

from tvm_ext.tir_schedules.cuda.finish import with_whole_vectors
from tvm_ext.tir_schedules.cuda.matmul.contraction import CudaContraction
from tvm_ext.tir_schedules.template import FixedDecisions


def conv(x: relax.Expr, w: relax.Expr) -> relax.Expr:
    return relax.op.nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="OHWI")


def test_split_convolutions_are_copied_sixteen_bytes_at_a_time() -> None:
    large = kernel_of(conv, f32(1, 40, 40, 96), f32(24, 3, 3, 96))
    source = whole_source(
        scheduled(CudaContraction(), large, decisions=FixedDecisions({"splits": 5}))
    )
    assert "ptx_cp_async_legacy_pred_cg_16" in source
    assert "ptx_cp_async_legacy_pred_ca" not in source


def test_numbers_of_split_convolutions() -> None:
    half = {"splits": 5, "tile_depth": 16, "stages": 2}
    cases = {
        "float32": (kernel_of(conv, f32(1, 4, 5, 96), f32(16, 3, 3, 96)), {"splits": 5}),
        "float16": (kernel_of(conv, f16(1, 4, 5, 96), f16(16, 3, 3, 96)), half),
    }
    found = {
        name: scheduled(CudaContraction(), func, decisions=FixedDecisions(how))
        for name, (func, how) in cases.items()
    }
    assert_emulated({name: func for name, (func, _) in cases.items()}, found)


def test_only_divisors_of_whole_vectors_are_rewritten() -> None:
    x = te.placeholder((8, 12), "float32", "x")
    func = te.create_prim_func([x, te.compute((96,), lambda i: x[i // 12, i % 12], "y")])
    for lanes, changes in ((4, True), (8, False)):
        sch = s_tir.Schedule(func)
        (loop,) = sch.get_loops(sch.get_sblock("y"))
        sch.vectorize(sch.split(loop, [None, lanes])[-1])
        body = sch.mod["main"].body
        assert with_whole_vectors(body).same_as(body) != changes
