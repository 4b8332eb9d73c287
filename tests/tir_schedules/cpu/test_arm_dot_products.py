"""Dot product tiles of AArch64: the instructions in the code, and their numbers in an emulator."""

import re
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
from emulated_arm import arm, compiled, emulated, run_on_arm
from lowering import kernel_of
from symbolic_extents import convolution, convolved, size
from thoroughness import one_in
from tvm import relax, tirx

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.cpu.dot_product_tile import DotProductTile

op = relax.op
RANDOM = np.random.default_rng(0)

# By instruction: what a CPU has beside NEON, the type of the data, steps of the sum.
INSTRUCTIONS = {
    "sdot": (("dotprod",), "int8", 4),
    "usdot": (("i8mm",), "uint8", 4),
    "smmla": (("dotprod", "i8mm"), "int8", 8),
    "usmmla": (("dotprod", "i8mm"), "uint8", 8),
    "bfdot": (("bf16",), "bfloat16", 2),
    "bfmmla": (("bf16",), "bfloat16", 4),
}
OF_INTEGERS = [name for name in INSTRUCTIONS if not name.startswith("bf")]
OF_BFLOAT16 = [name for name in INSTRUCTIONS if name.startswith("bf")]
SIGNED = ["sdot", "smmla"]


def machine_with(name: str) -> CpuDescription:
    return arm(*INSTRUCTIONS[name][0])


def steps_of(name: str, near: int) -> int:
    """An odd number of its steps: no instruction that takes twice as many serves them."""
    k = INSTRUCTIONS[name][2]
    return k * (near // k // 2 * 2 + 1)


def numbers(dtype: str, *shape: int) -> np.ndarray:
    if dtype == "bfloat16":
        return RANDOM.standard_normal(shape).astype(ml_dtypes.bfloat16)
    bounds = np.iinfo(dtype)
    return RANDOM.integers(bounds.min, bounds.max + 1, shape).astype(dtype)


def types_of(name: str) -> tuple[str, str, str]:
    """Of data, weights and sums."""
    dtype = INSTRUCTIONS[name][1]
    return (dtype, dtype, "float32") if name in OF_BFLOAT16 else (dtype, "int8", "int32")


def operands(name: str, data: Sequence[int], weights: Sequence[int]) -> list[np.ndarray]:
    dtype, own, _ = types_of(name)
    return [numbers(dtype, *data), numbers(own, *weights)]


def matmul(name: str, shape: Sequence[int | tirx.Var], columns: int) -> tirx.PrimFunc:
    """With a vector taken off: of integers a zero point's part."""
    dtype, own, total = types_of(name)
    return kernel_of(
        lambda x, w, z: op.subtract(op.matmul(x, w, out_dtype=total), z),
        (tuple(shape), dtype),
        ((shape[-1], columns), own),
        ((columns,), total),
    )


def scheduled(func: tirx.PrimFunc, machine: CpuDescription) -> ScheduledKernel:
    found = apply_template(DotProductTile(), func.with_attr(CONSTANTS_ATTRIBUTE, [1]), machine)
    assert isinstance(found, ScheduledKernel), found
    return found


def results(
    name: str, func: tirx.PrimFunc, arrays: Sequence[np.ndarray], shape: Sequence[int]
) -> np.ndarray:
    """The kernel's, for data, weights and the rest."""
    found = scheduled(func, machine_with(name))
    x, weights, *others = arrays
    *_, total = types_of(name)
    given = [x, found.packed.pack(weights), *others, np.full(shape, -7, total)]
    code = compiled(found.func, machine_with(name))
    assert used(code.inspect_source("s")) == {name}
    return run_on_arm(code, given)


def used(assembly: str) -> set[str]:
    return set(re.findall(r"^\s*(us?dot|sdot|us?mmla|smmla|bfdot|bfmmla)\s", assembly, re.M))


@pytest.mark.extended
@pytest.mark.parametrize("name", one_in(2, INSTRUCTIONS))
def test_kernels_have_the_instruction(name: str) -> None:
    steps = steps_of(name, 24)
    image = convolution((1, 14, 14, steps), (3, 3, steps, 64), types_of(name))
    for func in (matmul(name, (24, steps), 64), image):
        code = compiled(scheduled(func, machine_with(name)).func, machine_with(name))
        assert used(str(code.inspect_source("s"))) == {name}


@pytest.mark.extended
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_sums_stay_in_registers_while_products_are_added(name: str) -> None:
    func = matmul(name, (48, 256 + INSTRUCTIONS[name][2]), 64)
    code = compiled(scheduled(func, machine_with(name)).func, machine_with(name))
    parts = re.split(r"^\.LBB\w+:", str(code.inspect_source("s")), flags=re.M)
    loops = [re.split(r"\sb\.\w+\s", part)[0] for part in parts]
    innermost = [loop for loop in loops if len(re.findall(rf"\s{name}\s", loop)) >= 16]
    assert innermost
    assert not any(re.search(r"\sst[rp]\s", loop) for loop in innermost)


def multiplied(name: str, rows: int, steps: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """The results of a kernel, of 7 rows one for any number of them, and those of NumPy."""
    x, weights = operands(name, (2, rows, steps), (steps, columns))
    *_, total = types_of(name)
    taken = np.arange(columns, dtype=total)
    wanted = x.astype(total) @ weights.astype(total) - taken
    extent = rows if rows != 7 else size("rows")
    func = matmul(name, (2, extent, steps), columns)
    return results(name, func, [x, weights, taken], wanted.shape), wanted


@emulated
@pytest.mark.parametrize("name", OF_INTEGERS)
@pytest.mark.parametrize(("rows", "columns"), one_in(2, [(3, 72), (1, 16), (7, 100), (23, 64)]))
def test_matmuls_of_integers(name: str, rows: int, columns: int) -> None:
    made, wanted = multiplied(name, rows, steps_of(name, 24), columns)
    np.testing.assert_array_equal(made, wanted)


@emulated
@pytest.mark.parametrize("name", OF_INTEGERS)
def test_the_largest_products_do_not_saturate(name: str) -> None:
    steps = steps_of(name, 64)
    most = -128 if name in SIGNED else 255
    x = np.full((5, steps), most, INSTRUCTIONS[name][1])
    weights, nothing = np.full((steps, 32), -128, "int8"), np.zeros(32, "int32")
    wanted = np.full((5, 32), most * -128 * steps, "int32")
    made = results(name, matmul(name, x.shape, 32), [x, weights, nothing], wanted.shape)
    np.testing.assert_array_equal(made, wanted)


@emulated
@pytest.mark.parametrize("name", OF_INTEGERS)
@pytest.mark.parametrize(("stride", "is_symbolic"), one_in(2, [(2, True), (1, False)]))
def test_convolutions_of_integers(name: str, stride: int, is_symbolic: bool) -> None:
    channels = steps_of(name, 8)
    x, weights = operands(name, (2, 9, 7, channels), (3, 3, channels, 24))
    wanted = convolved(x.astype(np.int64), weights.astype(np.int64), stride)
    sides = (size("height"), size("width")) if is_symbolic else (9, 7)
    image = (2, *sides, channels)
    func = convolution(image, weights.shape, types_of(name), strides=stride)
    made = results(name, func, [x, weights], wanted.shape)
    np.testing.assert_array_equal(made, wanted)


@emulated
@pytest.mark.parametrize("name", OF_BFLOAT16)
@pytest.mark.parametrize(("rows", "columns"), one_in(2, [(1, 16), (7, 72), (23, 100)]))
def test_matmuls_of_bfloat16(name: str, rows: int, columns: int) -> None:
    made, wanted = multiplied(name, rows, steps_of(name, 50), columns)
    np.testing.assert_allclose(made, wanted, atol=1e-4, rtol=1e-5)


@emulated
@pytest.mark.parametrize("name", OF_BFLOAT16)
@pytest.mark.parametrize("is_symbolic", [False, True])
def test_padded_convolutions_of_bfloat16(name: str, is_symbolic: bool) -> None:
    channels = steps_of(name, 18)
    x, weights = operands(name, (2, 9, 7, channels), (3, 3, channels, 24))
    wanted = convolved(x.astype(np.float32), weights.astype(np.float32), pad=1)
    sides = (size("height"), size("width")) if is_symbolic else (9, 7)
    func = convolution((2, *sides, channels), weights.shape, types_of(name), padding=1)
    made = results(name, func, [x, weights], wanted.shape)
    np.testing.assert_allclose(made, wanted, atol=1e-3, rtol=1e-5)
