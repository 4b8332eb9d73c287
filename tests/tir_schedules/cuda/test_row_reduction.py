"""Rows on a GPU: numbers in every form, one kernel each, registers, what is left to others."""

import pytest
from cuda_kernels import assert_numbers, check, cuda_source, scheduled, shared_bytes
from kernel_cases import REDUCTIONS, layer_norm
from lowering import f32, kernel_of, kernels_of
from machines import GPU
from tvm import relax, te, tirx
from tvm.relax.op import nn

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.elementwise import CudaElementwise
from tvm_ext.tir_schedules.cuda.row_reduction import RowReduction

op = relax.op
TEMPLATE = RowReduction()
WINDOWS = ("max pool", "max pool nhwc", "avg pool ceil", "avg pool padded", "adaptive pool")
NAMES = [name for name in REDUCTIONS if name not in WINDOWS]


def row_kernels(expression: object, *inputs: object) -> dict[str, tirx.PrimFunc]:
    """The kernels of an expression that the template takes; at least one."""
    kernels = kernels_of(expression, *inputs)  # type: ignore[arg-type]
    results = {name: apply_template(TEMPLATE, func, GPU) for name, func in kernels.items()}
    found = {
        n: kernels[n] for n, result in results.items() if not isinstance(result, NotApplicable)
    }
    assert found, results
    return found


def test_numbers_of_every_kernel() -> None:
    plain = {}
    for name in NAMES:
        case = REDUCTIONS[name]
        for kernel, func in row_kernels(case.expression, *case.inputs).items():
            plain[f"{name}: {kernel}"] = func
    assert_numbers(plain, {name: scheduled(TEMPLATE, func) for name, func in plain.items()})


@pytest.mark.parametrize("name", NAMES)
def test_cuda_code(name: str) -> None:
    case = REDUCTIONS[name]
    for func in row_kernels(case.expression, *case.inputs).values():
        source = cuda_source(scheduled(TEMPLATE, func))
        assert source.count("__global__") == 2, "one kernel, declared and defined"


FORMS = {
    "warp": (lambda x: nn.softmax(x, 1), f32(1000, 132)),
    "block": (lambda x: nn.softmax(x, 1), f32(3, 4096)),
    "odd block": (lambda x: nn.softmax(x, 1), f32(2, 4099)),
    "longer than registers": (lambda x: nn.softmax(x, 1), f32(2, 70000)),
    "short": (lambda x: nn.softmax(x, 1), f32(301, 5)),
    "columns": (lambda x: nn.softmax(x, 0), f32(37, 70)),
    "many columns": (lambda x: op.sum(x, axis=[0]), f32(300, 33)),
    "few columns": (lambda x: op.max(x, axis=[0]), f32(1001, 3)),
    "long columns": (lambda x: nn.softmax(x, 0), f32(5000, 40)),
    "half": (lambda x: nn.softmax(x, 1), ((7, 264), "float16")),
    "half sum": (lambda x: op.max(x, axis=[1]), ((7, 1001), "float16")),
    "int8": (lambda x: op.max(x, axis=[1]), ((7, 1008), "int8")),
    "int32": (lambda x: op.sum(x, axis=[1]), ((7, 1001), "int32")),
    "layer norm": layer_norm(3, 7, 768),
    "layer norm odd": layer_norm(5, 1, 197),
    "layer norm half": layer_norm(6, 512, dtype="float16"),
    "one row": (lambda x: op.sum(x), f32(5000)),
    "one element": (lambda x: op.sum(x, axis=[1]), f32(5, 1)),
    "from minus infinity": (lambda x: op.max(x), f32(172, 33)),
    "argmax block": (lambda x: op.argmax(x, 1), f32(3, 2000)),
    "argmax columns": (lambda x: op.argmax(x, 0), f32(200, 40)),
    "batch norm statistics": (lambda x: op.variance(x, axis=[0, 2, 3]), f32(3, 5, 7, 9)),
    "after relu": (lambda x: nn.relu(op.sum(nn.relu(x), axis=[-1])), f32(9, 130)),
    "residual": (
        lambda x, y, g, b: nn.layer_norm(op.add(x, y), g, b, [-1]),
        f32(4, 96),
        f32(4, 96),
        f32(96),
        f32(96),
    ),
}


def test_numbers_of_every_form() -> None:
    plain = {}
    for name, (expression, *inputs) in FORMS.items():
        for kernel, func in row_kernels(expression, *inputs).items():
            plain[f"{name}: {kernel}"] = func
    assert_numbers(plain, {name: scheduled(TEMPLATE, func) for name, func in plain.items()})


@pytest.mark.parametrize("parts", [128, 256, 1024])
@pytest.mark.parametrize(("rows", "vector"), [(1, 1), (1, 4)])
def test_decisions(parts: int, rows: int, vector: int) -> None:
    check(
        TEMPLATE,
        lambda x: nn.softmax(x, 1),
        f32(3, 2052),
        parts=parts,
        rows=rows,
        vector=vector,
    )


@pytest.mark.parametrize("parts", [2, 4, 16])
@pytest.mark.parametrize("rows", [32, 64])
def test_decisions_across(parts: int, rows: int) -> None:
    check(TEMPLATE, lambda x: nn.softmax(x, 0), f32(33, 70), parts=parts, rows=rows)


def test_warp_and_block() -> None:
    def source(*shape: int) -> str:
        func = kernel_of(lambda x: nn.softmax(x, 1), f32(*shape))
        return cuda_source(scheduled(TEMPLATE, func))

    warp, block = source(4096, 256), source(4, 8192)
    assert "__shared__" not in warp
    assert "__syncwarp()" in warp
    assert "__shfl" in warp
    assert "float4" in warp
    assert warp.count("= *(float4*)(x0_ptr") == 2, "every element is loaded once"
    assert "__shfl_xor_sync((uint)4294967295" in warp, "all threads of a warp, without asking"
    assert block.count("__syncthreads") <= 3, "one a reduction, one between those that share memory"
    assert 0 < shared_bytes(block) <= GPU.shared_memory_bytes
    assert "__shfl" in block
    assert "__syncthreads" in block


@pytest.mark.parametrize(
    ("expression", "inputs", "reason"),
    [
        (op.exp, (f32(64, 64),), "no reduction"),
        (op.matmul, (f32(64, 32), f32(32, 16)), "several rows"),
        (lambda x: nn.max_pool2d(x, (3, 3)), (f32(1, 5, 13, 13),), ""),
    ],
)
def test_refusals(expression: object, inputs: tuple, reason: str) -> None:
    found = apply_template(TEMPLATE, kernel_of(expression, *inputs), GPU)  # type: ignore[arg-type]
    assert isinstance(found, NotApplicable)
    assert reason in found.reason


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_infinity_of_16_bits_is_spelled_as_cuda_does(dtype: str) -> None:
    x = te.placeholder((64, 256), dtype, name="x")
    low = tirx.const(float("-inf"), dtype)
    y = te.compute((64, 256), lambda i, j: tirx.Select(i > j, x[i, j], low), name="y")
    source = cuda_source(scheduled(CudaElementwise(), te.create_prim_func([x, y])))
    assert "inff" not in source
    assert ("INF" if dtype == "float16" else "65408") in source
