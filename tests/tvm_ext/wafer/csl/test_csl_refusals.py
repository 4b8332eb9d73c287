"""What there is no code for is refused in one line that says why."""

import importlib.util

import pytest
from tvm import s_tir, te, tirx

pytest.importorskip("xdsl", reason="xDSL is not installed: pip install 'tvm-ext[csl]'")

from csl_kernels import elementwise, machine, matmul, over_mesh, product

from tvm_ext.errors import TvmExtError
from tvm_ext.hardware.wafer.description import WaferLimitError
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, COMMUNICATION, MESH_AXIS, ROW, Pattern
from tvm_ext.tir_schedules.wafer.matmul import CANNON
from tvm_ext.wafer.csl import CslError, kernel_code


def refusal(func, mesh=None, kind=CslError):
    with pytest.raises(kind) as info:
        kernel_code(func, mesh or machine(), "k")
    assert isinstance(info.value, TvmExtError)
    assert "\n" not in str(info.value)
    return str(info.value)


def test_rings_are_not_written():
    func = matmul(product(12, 12, 12), rows=3, algorithm=CANNON)
    text = refusal(func)
    assert "no code for kernel 'k': the pattern of messages 'shift_row' is not written" in text
    assert "as in SUMMA" in text


@pytest.mark.parametrize(
    ("function", "dtypes", "said"),
    [
        (te.erf, ("float32",), "the function tirx.erf has no instruction"),
        (lambda a: a + 1, ("int32",), "it computes on int32; expected float32 or float16"),
        (lambda a: a * tirx.const(float("inf"), "float32"), ("float32",), "constant inf"),
        (lambda a: a.astype("float64") * 2.0, ("float32",), "it computes on float64"),
    ],
)
def test_operations_without_instructions(function, dtypes, said):
    assert said in refusal(over_mesh(elementwise(function, dtypes=dtypes)))


def test_borders_and_neighbours():
    x = te.placeholder((8, 8), "float32", "x")
    zero = tirx.const(0, "float32")
    padded = te.compute(
        (8, 8),
        lambda i, j: tirx.if_then_else(tirx.all(i > 0, j > 0), x[i, j], zero),
        name="y",
    )
    assert "it is on a border" in refusal(over_mesh(te.create_prim_func([x, padded]), 2, 2))
    wide = te.placeholder((8, 10), "float32", "x")
    window = te.compute((8, 8), lambda i, j: wide[i, j] + wide[i, j + 2], name="y")
    text = refusal(over_mesh(te.create_prim_func([wide, window]), 2, 2))
    assert "the parts of x in neighbouring PEs overlap: 6 elements, 4 apart" in text


def test_data_of_other_pes_without_a_message():
    x = te.placeholder((8, 8), "float32", "x")
    func = te.create_prim_func([x, te.compute((8, 8), lambda i, j: x[i, j] + x[j, i], name="y")])
    assert "PEs use parts of x that lie in other ones" in refusal(over_mesh(func, 2, 2))


def test_indices_that_divide():
    x = te.placeholder((64,), "float32", "x")
    func = te.create_prim_func([x, te.compute((8, 16), lambda i, j: x[i // 2 * 16 + j], name="y")])
    assert "an index of x is no sum of multiples of the loops" in refusal(over_mesh(func, 2, 2))


def reduced(combine, size=10, decompose=True):
    """Sums over the second dimension, cut into pieces that do not divide it."""
    x = te.placeholder((8, size), "float32", "x")
    over = te.reduce_axis((0, size), name="k")
    func = te.create_prim_func([x, te.compute((8,), lambda i: combine(x[i, over], over), name="y")])
    sch = s_tir.Schedule(func)
    block = sch.get_sblock("y")
    i, k = sch.get_loops(block)
    rows, _ = sch.split(i, factors=[2, None])
    sch.annotate(rows, MESH_AXIS, ROW)
    pieces, _ = sch.split(k, factors=[4, -(-size // 4)])
    if decompose:
        sch.decompose_reduction(block, pieces)
    return sch.mod["main"]


def test_sums_that_are_not_set_to_their_start():
    func = reduced(lambda x, k: te.sum(x, axis=k), 8, decompose=False)
    assert "block y does more than to assign one element" in refusal(func)


def test_padding_that_would_count():
    """A maximum over padding with zeros is another one; a sum of exponentials as well."""
    for combine in (
        lambda x, k: te.max(x, axis=k),
        lambda x, k: te.sum(te.exp(x), axis=k),
    ):
        assert "leaves out iterations whose results would count" in refusal(reduced(combine))
        kernel_code(reduced(combine, 8), machine())
    kernel_code(reduced(lambda x, k: te.sum(x * x, axis=k)), machine())


def test_kernels_that_are_not_for_a_mesh():
    assert "no loop is annotated as a row or column of the mesh" in refusal(elementwise(te.abs))
    plain = tirx.PrimFunc([], tirx.Evaluate(0))
    assert "it has no blocks" in refusal(plain)


def with_copy(pattern, under):
    """y = x + bias with a copy of the bias under one of the loops, sent by a pattern."""
    x, bias = te.placeholder((8, 8), "float32", "x"), te.placeholder((8,), "float32", "bias")
    func = te.create_prim_func(
        [x, bias, te.compute((8, 8), lambda i, j: x[i, j] + bias[j], name="y")]
    )
    sch = s_tir.Schedule(func)
    block = sch.get_sblock("y")
    i, j = sch.get_loops(block)
    (i0, i1), (j0, j1) = (sch.split(loop, factors=[2, 4]) for loop in (i, j))
    sch.reorder(i0, j0, i1, j1)
    sch.annotate(i0, MESH_AXIS, ROW)
    sch.annotate(j0, MESH_AXIS, COLUMN)
    copy = sch.cache_read(block, 1, "local")
    sch.compute_at(copy, {"pe": j0, "loop": i1}[under])
    sch.annotate(copy, COMMUNICATION, pattern)
    return sch.mod["main"]


def test_where_messages_may_stand():
    kernel_code(with_copy(Pattern.MULTICAST_COLUMN, "pe"), machine())
    kernel_code(with_copy(Pattern.RESIDENT, "loop"), machine())
    text = refusal(with_copy(Pattern.MULTICAST_COLUMN, "loop"))
    assert "a message (multicast_column) stands inside of a loop that is no step" in text
    assert "the pattern of messages 'gather'" in refusal(with_copy(Pattern.GATHER, "pe"))
    assert "'telepathy' is no pattern" in refusal(with_copy("telepathy", "pe"))


def test_limits_of_the_mesh():
    func = over_mesh(elementwise(te.abs, (200, 200)), 2, 2)
    text = refusal(func, kind=WaferLimitError)
    assert text.startswith("SRAM: 80,000 bytes a PE")
    small = over_mesh(elementwise(te.abs), 3, 4)
    assert refusal(small, machine(2, 4), WaferLimitError).startswith("rectangle: 3x4 PEs")
    long = over_mesh(elementwise(te.abs, (2, 70000)), 1, 2)
    assert "more than the 32767 that a descriptor reaches" in refusal(long)


def test_without_xdsl(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    text = refusal(elementwise(te.abs))
    assert text == (
        "xDSL is not installed; expected it for code in CSL: pip install 'tvm-ext[csl]'"
    )
