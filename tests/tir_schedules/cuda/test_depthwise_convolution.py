"""Windows that slide along strips of results: numbers, 16-byte accesses, what is left to others."""

import random
from pathlib import Path

import pytest
from cuda_kernels import (
    assert_numbers,
    cuda_source,
    needs_nvcc,
    resources,
    scheduled,
    whole_source,
)
from emulated_kernels import assert_emulated
from kernel_cases import CASES, KernelCase
from lowering import kernel_of
from machines import GPU
from strip_cases import DEPTHWISE, POOLS, SINGLE_OUTPUT, depthwise, first, last, pool
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.depthwise_convolution import (
    CudaDepthwiseConvolution,
    DirectConvolution,
)
from tvm_ext.tir_schedules.cuda.pooling import CudaPooling
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.template import FixedDecisions, SampledDecisions, Template

FAMILIES: tuple[tuple[Template, dict[str, KernelCase]], ...] = (
    (CudaDepthwiseConvolution(), DEPTHWISE),
    (DirectConvolution(), SINGLE_OUTPUT),
    (CudaPooling(), POOLS),
)
H200 = resolve_target("nvidia-h200")
LARGE = [
    depthwise((8, 112, 112, 32), (3, 3), padding=(1, 1)),
    depthwise((32, 112, 112, 96), (3, 3), "float16", padding=(1, 1), strides=(2, 2)),
    depthwise((32, 28, 28, 240), (5, 5), "bfloat16", padding=(2, 2)),
    first((8, 32, 112, 112), (32, 1, 3, 3), (1, 32, 1, 1), groups=32, padding=(1, 1)),
    pool((32, 112, 112, 64), (3, 3), (2, 2), (1, 1), layout="NHWC", dtype="float16"),
    pool((32, 64, 112, 112), (3, 3), (2, 2), (1, 1)),
]


def function_of(case: KernelCase) -> tirx.PrimFunc:
    return kernel_of(case.expression, *case.inputs)


def test_numbers() -> None:
    plain, found = {}, {}
    for template, cases in FAMILIES:
        for name, case in cases.items():
            func = function_of(case)
            plain[f"{template.name}: {name}"] = func
            found[f"{template.name}: {name}"] = scheduled(template, func)
    assert_numbers(plain, found)


@pytest.mark.parametrize("name", ["uneven padding", "half", "three times", "strides", "no padding"])
def test_numbers_of_any_strip(name: str) -> None:
    func = function_of(DEPTHWISE[name])
    decisions = [FixedDecisions({"strip_columns": 2, "strip_rows": 2}, lenient=True)]
    decisions += [SampledDecisions(random.Random(seed)) for seed in range(2)]
    found = {
        str(number): scheduled(CudaDepthwiseConvolution(), func, decisions=asked)
        for number, asked in enumerate(decisions)
    }
    assert_numbers(dict.fromkeys(found, func), found)


@pytest.mark.parametrize("name", ["channels first", "channels last", "half", "mean", "three axes"])
def test_numbers_of_any_pool(name: str) -> None:
    func = function_of(POOLS[name])
    found = {
        str(seed): scheduled(CudaPooling(), func, decisions=SampledDecisions(random.Random(seed)))
        for seed in range(3)
    }
    assert_numbers(dict.fromkeys(found, func), found)


def test_generated_code() -> None:
    """The CUDA code itself, with the alignment of every access checked."""
    plain, found = {}, {}
    for template, cases in FAMILIES:
        for name in ("half", "three times", "channels first, strides", "bytes", "mean"):
            if name in cases:
                plain[f"{template.name}: {name}"] = function_of(cases[name])
                asked = FixedDecisions({"strip_rows": 2}, lenient=True)
                found[f"{template.name}: {name}"] = scheduled(
                    template, plain[f"{template.name}: {name}"], decisions=asked
                )
    assert len(found) == 7
    assert_emulated(plain, found, seeds=(0,))


def source_of(case: KernelCase, template: Template, **decided: int) -> str:
    return cuda_source(scheduled(template, function_of(case), decisions=FixedDecisions(decided)))


@pytest.mark.parametrize(("dtype", "kind"), [("float32", "float4"), ("float16", "uint4")])
def test_sixteen_bytes(dtype: str, kind: str) -> None:
    case = depthwise((1, 9, 9, 32), (3, 3), dtype, padding=(1, 1))
    source = source_of(case, CudaDepthwiseConvolution(), strip_columns=2, strip_rows=1)
    # A strip of two results takes four columns of three rows, nine weights, and one bias.
    assert source.count(f"= *({kind}*)(x0_ptr") == 12
    assert source.count(f"= *({kind}*)(x1_ptr") == 9
    assert f"*({kind}*)(compute" in source or f"*({kind}*)(T_multiply" in source
    assert "__syncthreads" not in source


def test_rows_are_loaded_once_for_a_strip() -> None:
    case = first((1, 8, 40, 64), (8, 1, 3, 3), groups=8, padding=(1, 1))
    source = source_of(case, CudaDepthwiseConvolution(), strip_rows=4)
    assert source.count("= x0_ptr[") == 3 * (4 + 2)


def test_pools_have_no_padded_copy() -> None:
    source = source_of(POOLS["channels last"], CudaPooling())
    assert "__shared__" not in source
    assert source.count("__global__") == 2, "one declaration and one kernel"


def test_strips_of_large_and_of_small_results() -> None:
    assert isinstance(H200, CudaDescription)
    large, small = FixedDecisions(), FixedDecisions()
    scheduled(CudaDepthwiseConvolution(), function_of(LARGE[0]), H200, large)
    assert large.values["strip_columns"] * large.values["strip_rows"] >= 4
    case = depthwise((1, 14, 14, 512), (3, 3), padding=(1, 1))
    scheduled(CudaDepthwiseConvolution(), function_of(case), H200, small)
    assert (small.values["strip_columns"], small.values["strip_rows"]) == (1, 1)


@needs_nvcc
def test_no_spills(tmp_path: Path) -> None:
    assert isinstance(H200, CudaDescription)
    kernels = []
    for case in LARGE:
        template = CudaPooling() if case.template == "pooling" else CudaDepthwiseConvolution()
        kernels.append(scheduled(template, function_of(case), H200))
    for kernel in resources(whole_source(*kernels, machine=H200), "sm_90a", tmp_path):
        assert kernel.spilled == 0
        assert kernel.stack == 0
        assert kernel.registers <= 168


REFUSED = {
    "conv nchw 1x1 map": (
        DirectConvolution(),
        "the window covers all of its input and does not slide",
    ),
    "conv nhwc one channel": (
        DirectConvolution(),
        "threads would read channels, which come last, one after the other",
    ),
    "conv nhwc 1x1": (
        DirectConvolution(),
        "a window of one tap slides over nothing: it is a matmul",
    ),
    "conv nhwc": (CudaDepthwiseConvolution(), "it adds up several channels that results share"),
    "matmul": (CudaDepthwiseConvolution(), "the window covers all of its input and does not slide"),
    "softmax last": (CudaDepthwiseConvolution(), "the kernel has 2 reductions, not one"),
    "global pool": (CudaPooling(), "the window covers all of its input and does not slide"),
    "argmax last": (CudaPooling(), "the reduction has several results, or no start"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused(name: str) -> None:
    template, reason = REFUSED[name]
    found = apply_template(template, function_of(CASES[name]), GPU)
    assert isinstance(found, NotApplicable)
    assert found.reason == reason


def test_single_output_channels() -> None:
    first_case = SINGLE_OUTPUT["one output channel"]
    assert schedule_kernel(function_of(first_case), GPU)[1].schedule == "direct convolution"
    last_case = CASES["conv nhwc one channel"]
    assert schedule_kernel(function_of(last_case), GPU)[1].schedule == "gemv"


def test_many_products_of_a_shared_channel_go_to_tensor_cores() -> None:
    case = last((4, 40, 40, 1), (7, 7, 1, 64), dtype="float16")
    assert schedule_kernel(function_of(case), GPU)[1].schedule == "contraction"
    case = last((4, 40, 40, 1), (3, 3, 1, 64), dtype="float16")
    assert schedule_kernel(function_of(case), GPU)[1].schedule == "depthwise convolution"
