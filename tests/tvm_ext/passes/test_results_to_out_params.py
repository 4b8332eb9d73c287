"""The function whose results are parameters allocates none of them, and computes the same."""

import tvm
from tvm import relax

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.passes.results_to_out_params import ResultsToOutParams, out_params
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.spans import bindings_of
from tvm_ext.report.records import WITH_OUT_PARAMS


def allocated() -> tvm.IRModule:
    """``n`` by 4 elements: their Relu, twice that in ``2 n`` rows, and the input."""
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        first = builder.emit_te(tvm.topi.nn.relu, x)
        second = builder.emit_te(lambda t: tvm.topi.concatenate([t, t], 0), first)
        builder.emit_func_output(relax.Tuple([first, second, x]))
    passes = [relax.transform.ToNonDataflow(), relax.transform.RemovePurityChecking()]
    steps = tvm.transform.Sequential([*passes, relax.transform.CallTIRRewrite()])
    return steps(builder.get())


def allocations(func: relax.Function) -> int:
    values = [binding.value for binding in bindings_of(func)]
    return sum(operator_name(value) == "relax.builtin.alloc_tensor" for value in values)


def test_what_has_an_inputs_sizes_becomes_a_parameter() -> None:
    before = allocated()
    with compiling_for(resolve_target("avx2")):
        after = ResultsToOutParams()(before)
    assert out_params(before) == []
    assert out_params(after) == [0]
    made = after[WITH_OUT_PARAMS]
    assert [str(param.name) for param in made.params] == ["x", "alloc"]
    assert (allocations(after["main"]), allocations(made)) == (2, 1)
    tvm.ir.assert_structural_equal(after["main"], before["main"])
    relax.analysis.well_formed(after, check_ty=False)


def test_programs_for_a_gpu_stay_as_they_are() -> None:
    before = allocated()
    with compiling_for(resolve_target("nvidia-h200")):
        assert ResultsToOutParams()(before).same_as(before)
