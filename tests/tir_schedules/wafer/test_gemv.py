"""A matrix times a vector on a mesh: right numbers, and one reduction along the columns."""

import numpy as np
import pytest
from wafer_matmuls import WSE2, product, random, run, scheduled

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer.program import Transfer
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.wafer.gemv import COMBINATIONS, WaferGemv
from tvm_ext.tuning.wafer.cost_model import read_program


@pytest.mark.parametrize("shape", [(1, 29), (23, 1)])
@pytest.mark.parametrize("along_result", [0, 1])
def test_the_product_is_right_whichever_operand_is_the_vector(shape, along_result):
    m, n = shape
    a, b = random(m, 31), random(31, n)
    func = product(m, n, 31, relu=True)
    kernel = scheduled(WaferGemv(), func, vector_on_result=along_result)
    np.testing.assert_allclose(run(kernel.func, a, b), np.maximum(a @ b, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("combination", range(len(COMBINATIONS)))
def test_columns_add_up_by_the_pattern_that_was_decided(combination):
    func = product(1, 40, 48)
    options = {"rows": 8, "columns": 10, "combination": combination}
    program = read_program(scheduled(WaferGemv(), func, **options).func)
    vector, result = [one for one, _ in program.leaves() if isinstance(one, Transfer)]
    # A PE gets 48 / 8 elements of the vector and has 40 / 10 partial results.
    assert (vector.pattern, vector.words, vector.extent) == ("multicast_row", 6, 10)
    assert (result.pattern, result.words, result.extent) == (COMBINATIONS[combination], 4, 8)
    assert (program.rows, program.columns) == (8, 10)
    assert program.shards["B"] == 6 * 4 * 4


def test_products_of_matrices_are_left_alone():
    found = apply_template(WaferGemv(), product(8, 8, 8), WSE2)
    assert found == NotApplicable("neither operand is a vector, or nothing is summed")
