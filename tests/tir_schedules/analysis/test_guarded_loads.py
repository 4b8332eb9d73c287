"""Loads of an expression and the conditions under which they are done."""

import tvm
from tvm import tirx

from tvm_ext.tir_schedules.analysis.guarded_loads import each_element_once, guarded_loads

ROW, COLUMN = tirx.Var("i", "int64"), tirx.Var("j", "int64")
X, Y = tirx.decl_buffer((8,), "float32", "x"), tirx.decl_buffer((8,), "int64", "y")


def texts(value: tvm.ir.Expr, certain: bool = False) -> list[tuple[str, str]]:
    loads = guarded_loads(value, certain)
    return [(str(load.source.name), str(condition)) for load, condition in loads]


def test_both_sides_of_a_branch() -> None:
    zero = tirx.const(0.0, "float32")
    inner = tirx.if_then_else(COLUMN < 3, X[ROW], zero)
    assert texts(tirx.if_then_else(ROW < 4, inner, X[COLUMN])) == [
        ("x", "i < T.int64(4) and j < T.int64(3)"),
        ("x", "not i < T.int64(4)"),
    ]


def test_what_is_certain_is_no_index_and_not_right_of_a_logical_operator() -> None:
    value = tirx.Select(tirx.And(X[ROW] < X[COLUMN], Y[ROW] < ROW), X[Y[COLUMN]], X[ROW])
    assert [name for name, _ in texts(value)] == ["x", "x", "y", "x", "y", "x"]
    assert [name for name, _ in texts(value, certain=True)] == ["x", "x", "x", "x"]


def test_an_element_that_is_read_twice() -> None:
    zero = tirx.const(0.0, "float32")
    in_branches = [
        tirx.if_then_else(condition, X[ROW], zero) for condition in (ROW < 4, COLUMN < 3)
    ]
    (load,) = each_element_once(guarded_loads(in_branches[0] + in_branches[1]))
    assert str(load.condition) == "i < T.int64(4) or j < T.int64(3)"
    (load,) = each_element_once(guarded_loads(in_branches[0] + X[ROW]))
    assert load.condition is None
