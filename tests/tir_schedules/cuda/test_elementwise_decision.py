"""Vectors of which each lane loads its own element, rows that begin between vectors, 32 bits."""

import re

import pytest
from cuda_kernels import assert_numbers, cuda_source, scheduled
from emulated_kernels import assert_emulated
from kernel_cases import KernelCase
from lowering import f32, kernel_of, kernels_of
from tvm import relax
from tvm.relax.op import nn

from tvm_ext.tir_schedules.cuda.elementwise import CudaElementwise
from tvm_ext.tir_schedules.template import FixedDecisions

op = relax.op
TEMPLATE = CudaElementwise()


def _resized(method: str, layout: str, shape: tuple, coordinates: str = "half_pixel") -> KernelCase:
    def expression(x: relax.Expr) -> relax.Expr:
        size = (13, 18)
        return op.image.resize2d(
            x,
            size,
            layout=layout,
            method=method,
            coordinate_transformation_mode=coordinates,
            rounding_method="" if method == "linear" else "round_prefer_floor",
        )

    return KernelCase(expression, (f32(*shape),), "elementwise")


def _moved(expression: object, *inputs: tuple) -> KernelCase:
    return KernelCase(expression, inputs, "elementwise")  # type: ignore[arg-type]


def _depth_to_space(x: relax.Expr) -> relax.Expr:
    split = op.reshape(x, (2, 2, 2, 3, 6, 10))
    return op.reshape(op.permute_dims(split, [0, 3, 4, 1, 5, 2]), (2, 3, 12, 20))


CASES = {
    "odd rows": _moved(op.add, ((9, 131), "float16"), ((131,), "float16")),
    "odd rows, one for each": _moved(op.multiply, ((9, 131), "bfloat16"), ((9, 1), "bfloat16")),
    "odd maps": _moved(op.add, f32(4, 6, 7, 7), f32(6, 1, 1)),
    "bytes": _moved(op.maximum, ((5, 7, 97), "uint8"), ((97,), "uint8")),
    "slice": _moved(
        lambda x: op.strided_slice(x, [1, 2], [1, 3], [9, 34]), ((4, 11, 40), "float16")
    ),
    "steps": _moved(lambda x: op.strided_slice(x, [1], [1], [80], [3]), ((8, 80), "int8")),
    "backwards": _moved(lambda x: op.flip(x, 1), f32(8, 44)),
    "pad": _moved(lambda x: nn.pad(x, [0, 0, 0, 0, 1, 2, 3, 1]), f32(4, 2, 5, 8)),
    "pad reflect": _moved(lambda x: nn.pad(x, [0, 0, 2, 1, 1, 2], "reflect"), f32(8, 7, 9)),
    "concat": _moved(lambda *v: op.concat(list(v), -1), f32(8, 3), f32(8, 7), f32(8, 2)),
    "concat maps": _moved(
        lambda *v: op.concat(list(v), 1), *(((4, n, 7, 7), "float16") for n in (5, 2, 4))
    ),
    "depth to space": _moved(_depth_to_space, f32(2, 12, 6, 10)),
    "take inner": _moved(lambda x, i: op.take(x, i, 1), f32(8, 24), ((12,), "int64")),
    "take rows": _moved(lambda x, i: op.take(x, i, 0), ((50, 24), "float16"), ((4, 5), "int64")),
    "gather elements": _moved(
        lambda x, i: op.gather_elements(x, i, 1), f32(8, 7), ((8, 5), "int64")
    ),
    "nearest": _resized("nearest_neighbor", "NCHW", (2, 4, 7, 9)),
    "linear": _resized("linear", "NCHW", (2, 4, 7, 9)),
    "linear corners": _resized("linear", "NCHW", (2, 3, 7, 9), "align_corners"),
    "linear nhwc": _resized("linear", "NHWC", (2, 7, 9, 8)),
}


def _kernels() -> dict:
    return {
        f"{name}: {kernel}": func
        for name, case in CASES.items()
        for kernel, func in kernels_of(case.expression, *case.inputs).items()
    }


def test_numbers_of_repeated_vectors() -> None:
    plain = _kernels()
    decided = {"vectors": 2, "vector": 4, "threads": 64}
    how = [FixedDecisions(decided, lenient=True) for _ in plain]
    found = {
        name: scheduled(TEMPLATE, func, decisions=chosen)
        for (name, func), chosen in zip(plain.items(), how, strict=True)
    }
    assert_numbers(plain, found)


_QUICK = ("odd rows", "pad", "depth to space", "take rows", "linear nhwc")


@pytest.mark.parametrize(
    "names", [_QUICK, pytest.param(tuple(CASES), marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_emulated(names: tuple[str, ...]) -> None:
    plain = {name: func for name, func in _kernels().items() if name.split(":")[0] in names}
    found = {name: scheduled(TEMPLATE, func) for name, func in plain.items()}
    assert_emulated(plain, found, seeds=(1,))


def _source(name: str, **decided: int) -> str:
    case = CASES[name]
    (func,) = kernels_of(case.expression, *case.inputs).values()
    return cuda_source(scheduled(TEMPLATE, func, decisions=FixedDecisions(decided)))


@pytest.mark.parametrize("name", ["linear", "linear nhwc", "nearest", "take rows", "pad reflect"])
def test_addresses_are_of_32_bits(name: str) -> None:
    source = _source(name)
    assert not re.search(r"int64_t\)(blockIdx|threadIdx|\(int\))", source)
    assert not re.search(r"[/%] \(int64_t\)", source)


@pytest.mark.parametrize("name", ["odd maps", "pad", "nearest", "linear nhwc", "concat"])
def test_stores_of_sixteen_bytes(name: str) -> None:
    assert "float4" in _source(name)


def test_index_loads_do_not_narrow_vectors() -> None:
    assert _source("take rows").count("uint4") == 4, "one load and one store, two types each"


def test_bytes_that_each_lane_loads_are_few() -> None:
    # Sixteen loads of a byte for one store would take the cache longer than memory takes.
    assert "(int*)" in _source("steps") or "(uint*)" in _source("steps")


def test_repetitions_lie_along_an_outer_loop() -> None:
    source = _source("linear nhwc", vectors=2, vector=4)
    first, second = re.findall(r"\(float4\*\)\(resize_ptr \+ (.*)\) = ", source)
    # The second image: the same address and a constant.
    assert second.replace(" ", "").endswith(f"+{13 * 18 * 8})"), (first, second)


def test_large_sizes_keep_64_bits() -> None:
    func = kernel_of(lambda x: nn.relu(x), ((2**16, 2**15 + 8), "int8"))
    assert "int64_t" in cuda_source(scheduled(TEMPLATE, func))
