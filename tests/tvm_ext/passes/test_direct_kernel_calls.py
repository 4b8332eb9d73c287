"""Kernels that follow each other are called by one function, with the same results."""

import numpy as np
import pytest
import tvm
from small_models import mlp, model, node, rand, value
from thoroughness import one_in
from tvm import relax, tirx
from unoptimised import HOST

import tvm_ext
from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.passes.calls_of_kernels import CALLS_KERNELS
from tvm_ext.passes.direct_kernel_calls import DirectKernelCalls
from tvm_ext.passes.results_to_out_params import ResultsToOutParams
from tvm_ext.passes.share_storage import ShareStorage
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.spans import bindings_of
from tvm_ext.report.records import WITH_OUT_PARAMS, as_machine_code, specialized_name

DIRECT = as_machine_code("main")


def planned(*, meets_a_size: bool = False) -> tvm.IRModule:
    """Of ``n`` by 4 elements two kernels, or four with a size in the middle that a run finds."""
    n, rows = tirx.Var("n", "int64"), tirx.Var("rows", "int64")
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        last = builder.emit_te(tvm.topi.exp, x)
        last = builder.emit(relax.op.reshape(last, (4, n)))
        last = builder.emit_te(tvm.topi.transpose, last)
        if meets_a_size:
            last = builder.match_cast(last, relax.TensorType((rows, 4), "float32"))
            last = builder.emit_te(tvm.topi.exp, last)
            last = builder.emit_te(tvm.topi.negative, last)
        builder.emit_func_output(last)
    passes = [relax.transform.ToNonDataflow(), relax.transform.RemovePurityChecking()]
    steps = [*passes, relax.transform.CallTIRRewrite(), ShareStorage(), ResultsToOutParams()]
    return tvm.transform.Sequential(steps)(builder.get())


def called(mod: tvm.IRModule, name: str) -> list[str]:
    values = [binding.value for binding in bindings_of(mod[name])]
    return [
        str(v.op.name_hint) for v in values if isinstance(getattr(v, "op", 0), tvm.ir.GlobalVar)
    ]


def test_one_function_calls_the_kernels_of_a_row() -> None:
    with compiling_for(resolve_target("avx2")):
        before = planned()
        after = DirectKernelCalls()(before)
    assert called(before, "main") == ["exp", "transpose"]
    for name in (DIRECT, WITH_OUT_PARAMS):
        (only,) = called(after, name)
        assert CALLS_KERNELS in after[only].attrs
        values = [binding.value for binding in bindings_of(after[name])]
        assert "relax.reshape" not in map(operator_name, values)
    tvm.ir.assert_structural_equal(after["main"], before["main"])
    relax.analysis.well_formed(after, check_ty=False)
    with compiling_for(resolve_target("avx2")):
        assert DirectKernelCalls()(after).same_as(after)


def test_a_size_that_a_run_finds_ends_a_row() -> None:
    with compiling_for(resolve_target("avx2")):
        after = DirectKernelCalls()(planned(meets_a_size=True))
    assert len(called(after, DIRECT)) == 2


def test_programs_for_a_gpu_stay_as_they_are() -> None:
    with compiling_for(resolve_target("avx2")):
        before = planned()
    with compiling_for(resolve_target("nvidia-h200")):
        assert DirectKernelCalls()(before).same_as(before)


def without(source: object) -> tvm_ext.CompiledModel:
    return tvm_ext.compile(source, target=HOST, disabled_passes=["DirectKernelCalls"])


@pytest.mark.extended
@pytest.mark.parametrize("layers", one_in(2, [2, 9]))
def test_results_are_those_of_the_virtual_machine(layers: int) -> None:
    """Of few kernels, which are one module of machine code, and of many in objects of their own."""
    names = [f"v{i}" for i in range(layers + 1)]
    nodes = []
    for i in range(layers):
        nodes.append(node("MatMul", [names[i], f"w{i}"], [f"m{i}"]))
        nodes.append(node("Softmax", [f"m{i}"], [names[i + 1]], axis=-1))
    weights = {f"w{i}": rand(8 + i, 9 + i, seed=i) for i in range(layers)}
    ends = [value("v0", ["N", 8])], [value(names[-1], ["N", 8 + layers])]
    source = model(nodes, *ends, **weights)
    direct, other = tvm_ext.compile(source, target=HOST), without(source)
    for rows in (1, 5, 0):
        given = {"v0": rand(rows, 8, seed=rows)}
        np.testing.assert_array_equal(direct.run(given)[names[-1]], other.run(given)[names[-1]])


def test_specialised_programs_call_kernels_of_their_own() -> None:
    source, given = mlp(), {"x": rand(3, 6)}
    special = tvm_ext.compile(source, target=HOST, specialize=[{"x": (3, 6)}])
    (other,) = special.specialized
    for one, number in ((special, 0), (other, 1)):
        machine = one._new_machine()
        assert machine.implements_function(as_machine_code(specialized_name("main", number)))
    for name, wanted in without(source).run(given).items():
        np.testing.assert_allclose(special.run(given)[name], wanted, rtol=1e-5, atol=1e-6)
