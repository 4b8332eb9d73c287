"""docs/reference/vector-math.md holds: errors of a smaller sample, instructions, no library."""

from pathlib import Path

import numpy as np
import pytest
import tvm
import vector_math_accuracy as accuracy
from thoroughness import ALL_CASES, one_in

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.targets import resolve_target

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "vector-math.md"
ROWS = {
    cells[0]: cells[1:]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and "---" not in line
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}
FUNCTIONS = {function.name: function for function in accuracy.FUNCTIONS}
HOST = host_description()
# Bit patterns between two that are tried.
STRIDE = 9_001 if ALL_CASES else 108_007
ON_X86 = pytest.mark.skipif(HOST.architecture != "x86_64", reason="runs code for x86-64")


def test_the_page_has_every_function_and_its_range():
    assert set(ROWS) - {"function"} == set(FUNCTIONS)
    assert {ROWS[name][0] for name in FUNCTIONS} == {"all", "up to 1e8"}
    assert all(ROWS[name][0] == "up to 1e8" for name in ("sin", "cos", "tan"))


@pytest.mark.extended
@ON_X86
@pytest.mark.parametrize("name", one_in(3, FUNCTIONS))
def test_errors_are_not_above_those_of_the_page(name, monkeypatch):
    monkeypatch.setattr(accuracy, "NEIGHBOURS", 64)
    # As many numbers in smaller arrays, which caches hold.
    monkeypatch.setattr(accuracy, "CHUNK", 1 << 14)
    separate = tvm.target.Target(accuracy.NO_FMA)
    bounds = [(separate, float(ROWS[name][2]))]
    if "fma" in HOST.features:
        bounds.append((HOST.tvm_target(), float(ROWS[name][1])))
    for target, bound in bounds:
        # The page rounds to two digits.
        assert accuracy.largest_error(FUNCTIONS[name], target, STRIDE) <= bound + 0.005


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_instructions_are_those_of_the_page_and_none_is_a_call(name):
    found = [
        accuracy.instructions(FUNCTIONS[name], resolve_target(target).tvm_target(), lanes)
        for target, lanes in accuracy.COUNTED.items()
    ]
    assert found == [int(cell) for cell in ROWS[name][3:]]


def test_fused_multiply_add_is_used_where_the_target_has_it():
    for name, instruction in {
        "avx512": "vfmadd213ps\t%zmm",
        "avx2": "vfmadd213ps\t%ymm",
        "aarch64-neon": "fmla\tv",
    }.items():
        target = resolve_target(name).tvm_target()
        func = accuracy.kernel(FUNCTIONS["exp"], 16, 16, target)
        built = tvm.tirx.build(tvm.IRModule({"main": func}), target)
        text = built.inspect_source("asm")
        assert instruction in text or instruction.replace("213", "231") in text


def test_a_call_of_the_library_is_noticed():
    function = accuracy.Function("hypot", tvm.tirx.hypot, np.hypot, arguments=2)
    with pytest.raises(ArithmeticError, match="calls a library"):
        accuracy.instructions(function, resolve_target("avx2").tvm_target(), 8)


def test_units_of_the_last_place():
    found = np.array([1.0, 1.0, 0.0, np.inf, np.nan, 0.0, 1.0], np.float32)
    exact = np.array([1 + 2.0**-23, 1 - 2.0**-25, 2.0**-149, 1e39, np.nan, np.nan, 2.0])
    expected = [1, 0.5, 1, 0, 0, np.inf, 2.0**22]
    np.testing.assert_array_equal(accuracy.units(found, exact), expected)


def test_a_wrong_sign_of_zero_is_noticed():
    zeros = np.array([0.0, -0.0], np.float32)
    assert accuracy.same_specials(zeros, zeros.astype("float64"))
    assert not accuracy.same_specials(zeros, -zeros.astype("float64"))
    assert accuracy.same_specials(np.float32([np.nan, 1]), np.array([np.nan, 1.5]))
