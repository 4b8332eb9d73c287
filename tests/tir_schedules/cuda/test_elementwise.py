"""Elementwise kernels on a GPU: numbers, 16-byte accesses, bounds, what is left to others."""

import pytest
from cuda_kernels import assert_numbers, check, cuda_source, scheduled
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import MOVES, POINTWISE, REDUCTIONS
from lowering import f32, kernel_of, kernels_of
from machines import GPU, MACHINE
from tvm import relax
from tvm.relax.op import nn

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.elementwise import CudaElementwise
from tvm_ext.tir_schedules.template import FixedDecisions

op = relax.op
TEMPLATE = CudaElementwise()
KERNELS = {**MOVES, **POINTWISE}
NAMES = [name for name in KERNELS if "empty" not in name and "nothing" not in name]


def source_of(expression: object, *inputs: object, **decided: int) -> str:
    func = kernel_of(expression, *inputs)  # type: ignore[arg-type]
    return cuda_source(scheduled(TEMPLATE, func, decisions=FixedDecisions(decided)))


def test_numbers_of_every_kernel() -> None:
    plain = {}
    for name in NAMES:
        case = KERNELS[name]
        kernels = kernels_of(case.expression, *case.inputs)
        plain |= {f"{name}: {kernel}": func for kernel, func in kernels.items()}
    assert_numbers(plain, {name: scheduled(TEMPLATE, func) for name, func in plain.items()})


@pytest.mark.parametrize("name", NAMES)
def test_cuda_code(name: str) -> None:
    case = KERNELS[name]
    for func in kernels_of(case.expression, *case.inputs).values():
        source = cuda_source(scheduled(TEMPLATE, func))
        assert "__launch_bounds__(64)" in source


@settings(max_examples=12, deadline=None)
@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 8, 17, 24, 40]), min_size=1, max_size=3),
    dtype=st.sampled_from(["float16", "float32", "int8", "int32", "int64", "float64"]),
    fixed=st.booleans(),
)
def test_shapes_and_types(shape: list[int], dtype: str, fixed: bool) -> None:
    other = [1 if fixed else shape[0], *shape[1:]]
    check(TEMPLATE, op.add, (shape, dtype), (other, dtype))


@pytest.mark.parametrize("vector", [1, 2, 4])
@pytest.mark.parametrize("vectors", [1, 4])
def test_decisions(vector: int, vectors: int) -> None:
    check(TEMPLATE, op.add, f32(13, 50, 12), f32(12), vector=vector, vectors=vectors, threads=128)


@pytest.mark.parametrize(
    ("dtype", "kind"), [("float32", "float4"), ("float16", "uint4"), ("int8", "int4")]
)
def test_sixteen_bytes(dtype: str, kind: str) -> None:
    inputs = ((32, 64), dtype), ((64,), dtype)
    source = source_of(op.add, *inputs)
    assert source.count(f"*({kind}*)(x0_ptr") == 1
    assert source.count(f"*({kind}*)(x1_ptr") == 1
    assert source.count(f"*({kind}*)(T_add_ptr") == 1


def test_tail_of_one_flat_array() -> None:
    source = source_of(op.exp, f32(7, 149))
    assert "*(float4*)(compute_ptr" in source
    assert "compute_ptr[1042]" in source, "7 * 149 = 1040 + 3"


@pytest.mark.parametrize(
    ("expression", "inputs"),
    [
        # The rows of the result start anywhere between two vectors.
        (op.add, (f32(7, 149), f32(149))),
        # What is read starts one element after a vector.
        (lambda x: op.strided_slice(x, [1], [1], [41]), (f32(8, 80),)),
        # A border of the padding lies within a vector.
        (lambda x: nn.pad(x, [0, 0, 1, 3]), (f32(4, 60),)),
    ],
)
def test_misaligned_loads_are_single(expression: object, inputs: tuple) -> None:
    source = source_of(expression, *inputs)
    assert f"*(float4*)(x{len(inputs) - 1}_ptr" not in source
    assert source.count("(float4*)(") == 2 * len(inputs), "one store, and the aligned load"
    check(TEMPLATE, expression, *inputs)


def test_aligned_branches_keep_vectors() -> None:
    source = source_of(lambda *v: op.concat(list(v), 1), f32(8, 8), f32(8, 24))
    assert "*(float4*)(x0_ptr" in source
    assert "*(float4*)(x1_ptr" in source
    source = source_of(lambda x: nn.pad(x, [0, 0, 4, 4]), f32(8, 8))
    assert "*(float4*)(x0_ptr" in source


def test_large_grid_has_threads_for_all_multiprocessors() -> None:
    func = kernel_of(op.exp, f32(4096, 4096))
    chosen = FixedDecisions()
    scheduled(TEMPLATE, func, decisions=chosen)
    assert chosen.values == {"vector": 4, "threads": 256, "vectors": 4}
    small = FixedDecisions()
    scheduled(TEMPLATE, kernel_of(op.exp, f32(108 * 64 * 4)), decisions=small)
    assert small.values == {"vector": 4, "threads": 64, "vectors": 1}


@pytest.mark.parametrize("name", ["empty", "empty inside", "empty joined"])
def test_nothing_is_launched_for_nothing(name: str) -> None:
    case = KERNELS[name]
    func = kernel_of(case.expression, *case.inputs)
    empty = scheduled(TEMPLATE, func)
    assert_numbers({name: func}, {name: empty})
    assert ("threadIdx.x" in empty.script()) == (name == "empty joined")


def test_more_than_an_assignment() -> None:
    case = REDUCTIONS["adaptive pool"]
    func = kernel_of(case.expression, *case.inputs)
    found = scheduled(TEMPLATE, func)
    assert "threadIdx.x" in cuda_source(found)
    assert_numbers({"pool": func}, {"pool": found})


def test_others_are_refused() -> None:
    sums = kernel_of(lambda x: op.sum(x, axis=[1]), f32(4, 8))
    found = apply_template(TEMPLATE, sums, GPU)
    assert isinstance(found, NotApplicable)
    assert found.reason == "the kernel reduces or scans"
    assert isinstance(apply_template(TEMPLATE, kernel_of(op.exp, f32(8)), MACHINE), NotApplicable)
