"""Sizes that are multiples of a variable less a number: TVM concludes no more than they say."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from unoptimised import built

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.parameter_sizes import FactorParameterSizes


def kernel(factor: int, less: int) -> tirx.PrimFunc:
    """One more than each element, and 8 more of arrays of 8 and more."""
    size = tirx.Var("n", "int64") * factor - less
    x = te.placeholder((size,), name="x")
    more = tirx.Select(size >= 8, tirx.const(8.0, "float32"), tirx.const(1.0, "float32"))
    return te.create_prim_func([x, te.compute((size,), lambda i: x[i] + more, name="y")])


def sizes_of(func: tirx.PrimFunc) -> list[str]:
    made = FactorParameterSizes()(tvm.IRModule({"main": func}))["main"]
    return [str(size) for param in made.params for size in param.shape]


def test_sizes_begin_where_the_parameter_does() -> None:
    before = kernel(8, 9)
    assert all(size.startswith("(n - ") for size in sizes_of(before))


@pytest.mark.parametrize(("factor", "less"), [(1, 9), (8, 0), (8, 1)])
def test_sizes_of_right_bounds_stay(factor: int, less: int) -> None:
    before = kernel(factor, less)
    assert sizes_of(before) == [str(size) for param in before.params for size in param.shape]


@pytest.mark.parametrize(("factor", "less"), [(8, 9), (2, 5), (3, 7)])
def test_conditions_of_sizes_hold_in_the_run_only(factor: int, less: int) -> None:
    before = kernel(factor, less).with_attr("tirx.noalias", True)
    # The size is told by its variable.
    n = next(iter({v for v in tirx.analysis.undefined_vars(before.body) if str(v.name) == "n"}))
    func = tirx.PrimFunc([*before.params, n], before.body, before.ret_type, before.attrs)
    function = built({"kernel": func}, host_description())["kernel"]
    for count in range(-(-(less + 1) // factor), 12):
        length = factor * count - less
        x, y = (tvm.runtime.tensor(np.zeros(length, np.float32)) for _ in range(2))
        function(x, y, count)
        np.testing.assert_array_equal(y.numpy(), 8 if length >= 8 else 1)
