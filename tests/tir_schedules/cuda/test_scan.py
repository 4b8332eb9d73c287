"""Running sums on a GPU: numbers in every form, blocks enough for long rows, what is left alone."""

import pytest
from cuda_kernels import assert_numbers, cuda_source, needs_nvcc, resources, scheduled, whole_source
from emulated_kernels import assert_emulated
from lowering import f32, kernel_of
from machines import GPU
from tvm import relax, tirx
from tvm.script import tirx as T

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.onnx_frontend.converters.reductions import cumulated
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.scan import CudaScan
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.template import FixedDecisions

TEMPLATE = CudaScan()
EXCLUSIVE, REVERSE = {"exclusive": 1}, {"reverse": 1}


def scan(*shape: int, axis: int = -1, dtype: str = "float32", **options: int) -> tirx.PrimFunc:
    """CumSum as the ONNX frontend writes it; ``product=1``: CumProd."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    product = bool(options.pop("product", 0))
    with builder.function("main", [x]):
        with builder.dataflow():
            found = cumulated(builder, x, axis % len(shape), options, product)
            output = builder.emit_output(found)
        builder.emit_func_output(output)
    kernels = [f for f in builder.get().functions.values() if isinstance(f, tirx.PrimFunc)]
    return kernels[0]


SCANS: dict[str, tuple[tirx.PrimFunc, dict[str, int]]] = {
    "one": (scan(5000), {}),
    "rows": (scan(3, 1100), {}),
    "short": (scan(30, 40), {"rows": 4}),
    "odd": (scan(2, 1001, **EXCLUSIVE), {}),
    "reverse": (scan(3, 600, **REVERSE), {"parts": 32}),
    "half": (scan(2, 1000, dtype="float16"), {}),
    "int64": (scan(2, 700, dtype="int64", **EXCLUSIVE, **REVERSE), {}),
    "product": (scan(4, 77, product=1), {}),
    "chunks": (scan(2, 6000), {"parts": 64, "chunks": 16}),
    "odd chunks": (scan(1, 5011, **EXCLUSIVE), {"parts": 64, "chunks": 32}),
    "across": (scan(200, 40, axis=0), {}),
    "across in parts": (scan(3, 200, 5, 7, axis=1, **REVERSE), {"parts": 8}),
    "across in chunks": (scan(1, 900, 33, axis=1, **EXCLUSIVE), {"parts": 4, "chunks": 8}),
}


def test_numbers_and_threads() -> None:
    plain = {name: kernel for name, (kernel, _) in SCANS.items()}
    found = {
        name: scheduled(TEMPLATE, kernel, decisions=FixedDecisions(how))
        for name, (kernel, how) in SCANS.items()
    }
    assert_numbers(plain, found)
    assert_emulated(plain, found, seeds=(1,))


@pytest.mark.parametrize("shape", [(10_000_000,), (8, 100_000), (1, 40_000, 3), (600, 9000)])
def test_long_rows_get_many_threads(shape: tuple[int, ...]) -> None:
    axis = 1 if len(shape) == 3 else -1
    source = cuda_source(scheduled(TEMPLATE, scan(*shape, axis=axis)))
    assert source.count("__global__") == (2 if shape[0] == 600 else 4), "declared and defined"
    if axis == -1:
        assert "float4" in source
        assert "__shfl_up_sync" in source
    assert "atomic" not in source


@needs_nvcc
def test_no_spills() -> None:
    functions = [scheduled(TEMPLATE, scan(2, 100_000)), scheduled(TEMPLATE, scan(900, 70, axis=0))]
    for found in resources(whole_source(*functions), "sm_80"):
        assert found.spilled == 0


def test_it_is_asked_before_the_fallback() -> None:
    assert schedule_kernel(scan(3, 900), GPU)[1].schedule == "scan"


def test_refusals() -> None:
    @T.prim_func(s_tir=True)
    def decaying(a: T.Buffer((7, 40), "float32"), b: T.Buffer((7, 40), "float32")):
        for i in range(7):
            total = T.alloc_buffer((1,), "float32", scope="local")
            total[0] = T.float32(0)
            for j in range(40):
                total[0] = total[0] * T.float32(0.5) + a[i, j]
                b[i, j] = total[0]

    found = apply_template(TEMPLATE, decaying, GPU)
    assert isinstance(found, NotApplicable)
    assert "one operator of any order" in found.reason
    other = apply_template(TEMPLATE, kernel_of(relax.op.exp, f32(4, 9)), GPU)
    assert isinstance(other, NotApplicable)
    assert "carries no value" in other.reason
