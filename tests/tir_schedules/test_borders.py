"""Where concatenation and padding change their choice, and the loops that result."""

import pytest
from lowering import f32, kernel_of, loops_of, lowered, scalar_stores
from machines import MACHINE
from tvm import relax, s_tir, te, tirx
from tvm.relax.op import nn

from tvm_ext.tir_schedules.llvm.borders import MAX_PIECES, Borders, borders_of
from tvm_ext.tir_schedules.llvm.elementwise import Elementwise

op = relax.op


def borders(func: tirx.PrimFunc) -> list[Borders]:
    sch = s_tir.Schedule(func)
    (block,) = sch.get_child_blocks(sch.get_sblock("root"))
    return borders_of(sch, block)


def finished(func: tirx.PrimFunc) -> tirx.PrimFunc:
    sch = Elementwise().apply(func, MACHINE)
    assert isinstance(sch, s_tir.Schedule)
    return lowered(sch.mod["main"], MACHINE)


def test_concatenation() -> None:
    func = kernel_of(lambda *v: op.concat(list(v), 1), f32(3, 5), f32(3, 7), f32(3, 1))
    assert borders(func) == [Borders(), Borders((5, 12))]
    assert [loop.extent for loop in loops_of(finished(func))] == [3, 5, 7]
    assert "if_then_else" not in finished(func).script()


def test_padding() -> None:
    func = kernel_of(lambda x: nn.pad(x, [0, 0, 2, 3]), f32(3, 24))
    assert borders(func) == [Borders(), Borders((2, 26))]
    assert [loop.extent for loop in loops_of(finished(func))] == [3, 2, 24, 3]
    assert "if_then_else" not in finished(func).script()


def test_pad_of_outer_loops_keeps_vectors() -> None:
    func = kernel_of(lambda x: nn.pad(x, [0, 0, 1, 1, 0, 0]), f32(1, 5, 24))
    assert borders(func)[1:] == [Borders((1, 6)), Borders()]
    assert "if_then_else" in finished(func).script()
    assert scalar_stores(finished(func), MACHINE) == 0


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        (lambda i: i < 5, Borders((5,))),
        (lambda i: i <= 5, Borders((6,))),
        (lambda i: i > 5, Borders((6,))),
        (lambda i: i >= 5, Borders((5,))),
        (lambda i: tirx.const(5, "int32") < i, Borders((6,))),
        (lambda i: tirx.const(5, "int32") >= i, Borders((6,))),
        (lambda i: 7 - i > 2, Borders((5,))),
        (lambda i: 7 - i <= 2, Borders((5,))),
        (lambda i: i.equal(5), Borders((5, 6))),
        (lambda i: tirx.all(i >= 2, i < 9), Borders((2, 9))),
        (lambda i: i < 40, Borders()),
        (lambda i: i % 2 < 1, Borders(known=False)),
        (lambda i: 2 * i < 9, Borders((5,))),
    ],
)
def test_conditions(condition: object, wanted: Borders) -> None:
    a = te.placeholder((16,), name="a")
    picked = te.compute(
        (16,),
        lambda i: tirx.if_then_else(condition(i), a[i], tirx.const(0.0, "float32")),  # type: ignore[operator]
    )
    func = te.create_prim_func([a, picked])
    (found,) = borders(func)
    assert found == wanted
    # The borders are where the condition, evaluated, changes.
    if wanted.known:
        values = [int(tvm_bool(condition, i)) for i in range(16)]
        assert tuple(i for i in range(1, 16) if values[i] != values[i - 1]) == wanted.positions


def tvm_bool(condition: object, value: int) -> bool:
    from tvm.sym import Analyzer

    result = Analyzer().simplify(condition(tirx.const(value, "int32")))  # type: ignore[operator]
    return bool(result)


def test_many_pieces_stay_one_loop() -> None:
    count = MAX_PIECES + 1
    func = kernel_of(lambda *v: op.concat(list(v), 1), *[f32(3, 2)] * count)
    assert [loop.extent for loop in loops_of(finished(func))] == [3, 2 * count]
