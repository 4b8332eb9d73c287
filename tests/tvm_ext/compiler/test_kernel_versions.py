"""The versions of a kernel's code, and which of them is said to run at sizes around each border."""

from collections.abc import Mapping

import pytest
import tvm
from small_models import model, node, rand, self_attention, value
from thoroughness import one_in
from tvm import tirx
from unoptimised import HOST

import tvm_ext
from tvm_ext.compiler.kernel_records import kernel_records
from tvm_ext.compiler.kernel_versions import kernel_versions
from tvm_ext.hardware.cost_model import cost_model
from tvm_ext.report.records import KernelCall, SymbolicRecord
from tvm_ext.tir_schedules.cpu.thread_choice import CONDITION
from tvm_ext.tir_schedules.statements import sequence

N, L = tirx.Var("N", "int64"), tirx.Var("L", "int64")
X = tirx.decl_buffer((N, L), "float32", "X")
PLACES = {(0, 0): "N", (0, 1): "L"}
MACHINE = HOST.model_copy(update={"vector_bits": 128, "cores": 2})


def number(value: int) -> tirx.IntImm:
    return tirx.const(value, "int64")


def loop(extent, body, kind=tirx.ForKind.SERIAL) -> tirx.For:
    return tirx.For(tirx.Var("i", "int64"), number(0), extent, kind, body)


def store() -> tirx.Stmt:
    return tirx.BufferStore(X, tirx.const(1.0, "float32"), [number(0), number(0)])


def vectors(lanes: int, kind=tirx.ForKind.SERIAL) -> tirx.For:
    return loop(N, loop(number(lanes), store(), tirx.ForKind.VECTORIZED), kind)


def choices_of(body: tirx.Stmt):
    return kernel_versions(tirx.PrimFunc([X], body), PLACES)


def ran(choices, sizes: Mapping[str, int]) -> list[str]:
    record = SymbolicRecord({"N": [0, 0], "L": [0, 1]}, "0", "0", choices)
    return [name for _, name in record.versions_at(sizes)]


def test_a_chain_of_conditions_is_one_choice():
    plain = loop(N, loop(L, store()))
    inner = tirx.IfThenElse(tirx.all(L >= 4, N > 2), vectors(4), plain)
    choices = choices_of(tirx.IfThenElse(L >= 16, vectors(16), inner))
    assert [[one.name for one in choice] for choice in choices] == [
        ["vectors of 16", "vectors of 4", "no vectors"]
    ]
    for length, rows, name in [
        (16, 1, "vectors of 16"),
        (15, 3, "vectors of 4"),
        (4, 3, "vectors of 4"),
        (4, 2, "no vectors"),
        (3, 3, "no vectors"),
    ]:
        assert ran(choices, {"L": length, "N": rows}) == [name]


def test_threads_are_a_choice_within_a_version():
    threads = vectors(8, tirx.ForKind.PARALLEL)
    many = tirx.AttrStmt(tirx.const(0, "int32"), CONDITION, N * L > 100, threads)
    choices = choices_of(tirx.IfThenElse(L >= 8, many, loop(N, loop(L, store()))))
    assert ran(choices, {"L": 8, "N": 13}) == ["vectors of 8, threads"]
    assert ran(choices, {"L": 8, "N": 12}) == ["vectors of 8, one thread"]
    assert ran(choices, {"L": 7, "N": 99}) == ["no vectors, one thread"]


def test_loops_one_after_the_other_are_choices_of_their_own():
    first = tirx.IfThenElse(N >= 4, vectors(8), loop(N, store()))
    second = tirx.IfThenElse(tirx.floormod(L, number(8)) == 0, vectors(8), loop(N, store()))
    choices = choices_of(sequence([first, second]))
    assert ran(choices, {"N": 4, "L": 12}) == ["vectors of 8", "no vectors"]
    assert ran(choices, {"N": 3, "L": 16}) == ["no vectors", "vectors of 8"]


def test_versions_that_look_alike_are_told_by_their_conditions():
    choices = choices_of(tirx.IfThenElse(N >= L, loop(N, store()), loop(L, store())))
    assert ran(choices, {"N": 2, "L": 2}) == ["N >= L"]
    assert ran(choices, {"N": 2, "L": 3}) == ["N < L"]


def test_a_choice_inside_of_a_version_counts_where_that_runs():
    inner = tirx.IfThenElse(N > 5, vectors(8), loop(N, store()))
    choices = choices_of(tirx.IfThenElse(L > 9, sequence([inner, store()]), vectors(2)))
    assert ran(choices, {"L": 10, "N": 6}) == ["vectors of 8", "vectors of 8"]
    assert ran(choices, {"L": 9, "N": 6}) == ["vectors of 2"]


def test_what_a_loop_or_the_data_decide_is_no_choice():
    i = tirx.Var("i", "int64")
    of_loop = tirx.IfThenElse(i < L, vectors(8), store())
    assert choices_of(tirx.For(i, number(0), N, tirx.ForKind.SERIAL, of_loop)) == []
    of_data = tirx.BufferLoad(X, [number(0), number(0)]) > tirx.const(0.0, "float32")
    assert choices_of(tirx.IfThenElse(of_data, vectors(8), store())) == []
    assert choices_of(tirx.IfThenElse(L > 3, vectors(8), None)) == []


def compiled(nodes, shape, output, **options) -> tvm_ext.CompiledModel:
    made = model(nodes, [value("x", shape)], [value("y", output)])
    return tvm_ext.compile(made, MACHINE, **options)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("batch", "length"), one_in(3, [(1, 1), (3, 5), (4, 4), (7, 16), (16, 17), (33, 40), (70, 900)])
)
def test_one_version_of_each_choice_runs_at_any_size(attention, batch, length):
    """Templates' own conditions: of each choice that is not within another one version holds."""
    x = rand(batch, length, 16)
    profile = attention.profile({"x": x}, repeat=1)
    records = {record.name: record.symbolic for record in attention.report.kernels}
    found = [len(kernel.versions) for kernel in profile.kernels]
    assert sum(found) > 2
    for kernel in profile.kernels:
        assert len(kernel.versions) == len(records[kernel.kernel].versions)
        assert all(sum(choice.values()) == kernel.calls for choice in kernel.versions)


@pytest.fixture(scope="module")
def attention():
    """Several kernels."""
    shape = ["N", "L", 16]
    return compiled(self_attention(), shape, shape, disabled_passes=["AttentionFusion"])


def test_kernels_of_known_sizes_have_no_versions():
    report = compiled([node("Sigmoid", ["x"], ["y"])], [4, 16], [4, 16]).report
    assert all(record.symbolic is None for record in report.kernels)
    assert all("symbolic" not in record for record in report.to_dict()["kernels"])


def test_a_kernel_with_the_code_of_another_has_no_versions_of_its_own():
    kernels = tvm.IRModule({"mine": tirx.PrimFunc([X], vectors(4))})
    calls, model_of_costs = [KernelCall("mine", ("a",))], cost_model(MACHINE)
    (record,) = kernel_records(kernels, calls, {}, model_of_costs, final=tvm.IRModule({}))
    assert record.symbolic.sizes == {"N": [0, 0], "L": [0, 1]}
    assert record.symbolic.versions == []
