"""Which kernels MultiOutputFusion fuses, which it leaves alone and why, and their numbers."""

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
import tvm
from small_models import model, node, value
from thoroughness import one_in
from tvm import relax, tirx
from tvm_ffi import structural_equal

import tvm_ext
from tvm_ext.configs.decision import Decision
from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.passes import multi_output_fusion, registry
from tvm_ext.passes.multi_output_fusion import check
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.spans import bindings_of

op = relax.op
NAME = "MultiOutputFusion"
BEFORE = ("LegalizeOps", "AnnotateTIROpPattern", "PropagateSpans", "FuseOperators", "FuseTIR")
N, M = (tirx.Var(name, "int64") for name in "nm")


def kernels_before(body: Callable, *shapes: Sequence) -> tvm.IRModule:
    """The fused kernels of what ``body`` returns for inputs of these shapes."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"x{i}", relax.TensorType(list(shape), "float32"))
        for i, shape in enumerate(shapes)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            made = [builder.emit_output(one) for one in body(builder.emit, *params)]
        builder.emit_func_output(relax.Tuple(made))
    steps = [registry.get(name).make({}) for name in BEFORE]
    return tvm.transform.Sequential(steps)(builder.get())


def fused(mod: tvm.IRModule, target: str = "avx512") -> tuple[tvm.IRModule, list[Decision]]:
    with compiling_for(resolve_target(target)), recording() as decisions:
        changed = registry.get(NAME).make({})(mod)
    return changed, decisions


def calls(mod: tvm.IRModule) -> list[relax.Call]:
    values = [binding.value for binding in bindings_of(mod["main"])]
    return [one for one in values if isinstance(one, relax.Call) and len(one.ty_args)]


def sum_and_difference(emit, x, y):
    return [op.add(x, y), op.subtract(x, y)]


@pytest.mark.parametrize("shape", [(8, 100), (N, 100), (N, M), (N, N * 2)])
def test_siblings_become_one_kernel_with_two_results(shape) -> None:
    before = kernels_before(sum_and_difference, shape, shape)
    text = before.script()
    after, decisions = fused(before)
    (call,) = calls(after)
    assert isinstance(call.ty, relax.TupleType)
    assert len(call.ty.fields) == 2
    kernels = [func for func in after.functions.values() if isinstance(func, tirx.PrimFunc)]
    assert len(kernels) == 1, "the kernels that nobody calls are gone"
    assert sum(hasattr(param, "shape") for param in kernels[0].params) == 4
    assert [(one.applied, one.reason) for one in decisions] == [(True, "one kernel with 2 results")]
    assert before.script() == text
    relax.analysis.well_formed(after)
    assert structural_equal(fused(after)[0], after)


def test_equal_sizes_in_two_forms_have_one_name() -> None:
    """As a reshape to windows of an image has them, and what is computed of its result."""
    quotient = tirx.FloorDiv(N * 192, tirx.const(16, "int64"))

    def body(emit, x, y, _):
        return sum_and_difference(emit, x, y)

    after, decisions = fused(kernels_before(body, (quotient, 100), (N * 12, 100), (N,)))
    assert [one.applied for one in decisions] == [True]
    (call,) = calls(after)
    kernel = after[call.args[0]]
    assert len({str(buffer.shape[0]) for buffer in kernel.params if hasattr(buffer, "shape")}) == 1
    tvm.s_tir.Schedule(kernel)


def test_three_siblings_become_one_kernel() -> None:
    after, _ = fused(
        kernels_before(lambda emit, x: [op.exp(x), op.tanh(x), op.negative(x)], (8, 100))
    )
    (call,) = calls(after)
    assert len(call.ty.fields) == 3


def test_a_cheap_producer_is_computed_again_by_its_readers() -> None:
    def body(emit, x, y, z):
        wide = emit(op.broadcast_to(x, (64, 1000)))
        return [op.multiply(wide, y), op.add(op.concat([wide, z], 0), op.concat([y, y], 0))]

    before = kernels_before(body, (1, 1000), (64, 1000), (64, 1000))
    after, decisions = fused(before)
    applied = [one.reason for one in decisions if one.applied]
    assert (len(calls(before)) > len(calls(after))) == bool(applied)
    assert applied == ["computed again in each of 2 kernels"]


def path_between(emit, x, y):
    first = emit(op.add(x, y))
    return [first, op.multiply(emit(op.sum(first, axis=1, keepdims=True)), op.add(x, y))]


REFUSED = {
    "other sizes": (
        lambda emit, x: [op.exp(x), op.concat([x, x], 0)],
        [(8, 100)],
        "the results have other numbers of elements",
    ),
    "sizes that may differ": (
        lambda emit, x, y, z: [op.add(x, y), op.add(x, z)],
        [(1, 100), (N, 100), (M, 100)],
        "the results have other numbers of elements",
    ),
    "transposed": (
        lambda emit, x: [op.exp(x), op.permute_dims(x)],
        [(64, 64)],
        "a tensor is read along another axis than a result is written",
    ),
    "branches": (
        lambda emit, x, y: [op.exp(x), op.concat([op.strided_slice(x, [0], [0], [4]), y], 0)],
        [(8, 100), (4, 100)],
        "a result is computed in branches, which are loops of their own",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    body, shapes, reason = REFUSED[name]
    before = kernels_before(body, *shapes)
    after, decisions = fused(before)
    assert after.same_as(before)
    assert [(one.applied, one.reason) for one in decisions] == [(False, reason)]


def test_a_kernel_that_waits_for_the_other_is_no_sibling() -> None:
    before = kernels_before(path_between, (8, 100), (8, 100))
    after, decisions = fused(before)
    assert after.same_as(before)
    assert not any(one.applied for one in decisions)


@pytest.mark.extended
def test_a_producer_that_costs_more_than_its_storage_is_kept() -> None:
    def body(emit, x, y, z):
        dear = x
        for _ in range(40):
            dear = op.tanh(op.add(dear, x))
        dear = emit(dear)
        return [op.multiply(dear, y), op.add(dear, z), op.sum(dear)]

    before = kernels_before(body, *[(512, 1024)] * 3)
    _, decisions = fused(before)
    assert not any("again" in one.reason for one in decisions)


def test_gpus_are_left_alone() -> None:
    before = kernels_before(sum_and_difference, (8, 100), (8, 100))
    after, decisions = fused(before, "nvidia-h200")
    assert after.same_as(before)
    assert [one.reason for one in decisions] == ["for 'nvidia-h200' it is not known to pay"]


def rotation(shape: list) -> onnx.ModelProto:
    """A product of complex numbers in parts: two kernels of the same four tensors."""
    steps = [("Mul", "a", "c", "ac"), ("Mul", "b", "d", "bd"), ("Sub", "ac", "bd", "re")]
    steps += [("Mul", "a", "d", "ad"), ("Mul", "b", "c", "bc"), ("Add", "ad", "bc", "im")]
    nodes = [node(kind, [left, right], [made]) for kind, left, right, made in steps]
    return model(nodes, [value(n, shape) for n in "abcd"], [value(n, shape) for n in ("re", "im")])


@pytest.mark.extended
@pytest.mark.parametrize("shape", one_in(2, [[7, 33], ["n", 33], ["n", "k"], [5]]))
def test_numbers_and_origins(shape: list) -> None:
    program = tvm_ext.compile(rotation(shape))
    assert program.report.kernel_calls == 1
    for rows, columns in ((7, 33), (1, 1), (3, 700)):
        sizes = [d if isinstance(d, int) else {"n": rows, "k": columns}[d] for d in shape]
        draw = np.random.default_rng(0)
        given = {name: draw.normal(size=sizes).astype("float32") for name in "abcd"}
        a, b, c, d = given.values()
        found = program.run(given)
        np.testing.assert_allclose(found["re"], a * c - b * d, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found["im"], a * d + b * c, rtol=1e-5, atol=1e-5)


def test_the_kernel_has_the_origins_of_both() -> None:
    program = tvm_ext.compile(rotation([7, 33]))
    (kernel,) = program.report.kernels
    assert {"Sub_2", "Add_5"} <= set(kernel.origins[0].split(" + "))


def test_candidates_of_one_form_are_looked_at_once(monkeypatch) -> None:
    """As the steps of an unrolled loop are; each becomes a call of the same kernel."""

    def steps(emit, *pairs):
        return [
            emit(made(x, y))
            for x, y in zip(pairs[::2], pairs[1::2], strict=True)
            for made in (op.add, op.subtract)
        ]

    looked_at = []
    monkeypatch.setattr(
        multi_output_fusion,
        "check",
        lambda candidate, *rest: looked_at.append(candidate) or check(candidate, *rest),
    )
    before = kernels_before(steps, *[(N, 100)] * 8)
    after, decisions = fused(before)
    assert len(looked_at) == 1
    assert [one.applied for one in decisions] == [True] * 4
    found = calls(after)
    assert len(found) == 4
    assert len({str(call.args[0].name_hint) for call in found}) == 1
    read = [list(call.args[1].fields) for call in found]
    assert [one for pair in read for one in pair] == list(after["main"].params)
