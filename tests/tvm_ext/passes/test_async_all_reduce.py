"""An all-reduce is split only where a kernel runs ahead of what reads its result."""

import pytest
import tvm
from tvm import relax

from tvm_ext.configs.sharding_record import DONE_FUNCTION, START_FUNCTION
from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.passes.async_all_reduce import ALL_REDUCE_FUNCTION, AsyncAllReduce
from tvm_ext.passes.share_storage import ShareStorage
from tvm_ext.relay_passes.dataflow.buffer_lifetimes import ALLOCATION
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.spans import bindings_of

REDUCED, ADDED = tvm.topi.nn.relu, tvm.topi.add


def calling(build) -> tvm.IRModule:
    """``build`` of two values, behind ``CallTIRRewrite``."""
    params = [relax.Var(name, relax.TensorType([8, 16], "float32")) for name in "xy"]
    bb = relax.BlockBuilder()
    with bb.function("main", params):
        with bb.dataflow():
            result = bb.emit_output(build(bb, *params))
        bb.emit_func_output(result)
    names = "LegalizeOps", "RewriteDataflowReshape", "ToNonDataflow", "CallTIRRewrite"
    return tvm.transform.Sequential([getattr(relax.transform, n)() for n in names])(bb.get())


def total(bb: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    return bb.emit(relax.op.ccl.allreduce(value, "sum"))


def beside_a_kernel(bb: relax.BlockBuilder, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    whole = total(bb, bb.emit_te(REDUCED, x))
    other = bb.emit_te(REDUCED, y)
    return bb.emit_te(ADDED, whole, other)


def beside_another(bb: relax.BlockBuilder, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    first = total(bb, bb.emit_te(REDUCED, x))
    second = total(bb, bb.emit_te(REDUCED, y))
    return bb.emit_te(ADDED, bb.emit_te(REDUCED, first), second)


def under_another_name(bb: relax.BlockBuilder, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    flat = bb.emit(relax.op.reshape(total(bb, x), [128]))
    other = bb.emit_te(REDUCED, y)
    return relax.Tuple([bb.emit_te(REDUCED, flat), other])


def as_a_result(bb: relax.BlockBuilder, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    whole = total(bb, x)
    return relax.Tuple([whole, bb.emit_te(REDUCED, y)])


def read_at_once(bb: relax.BlockBuilder, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    return bb.emit_te(ADDED, total(bb, x), y)


def calls(mod: tvm.IRModule) -> list[str]:
    """In their order, by short names; kernels by theirs."""
    short = {ALL_REDUCE_FUNCTION: "all", START_FUNCTION: "start", DONE_FUNCTION: "done"}
    found = []
    for binding in bindings_of(mod["main"]):
        op = getattr(binding.value, "op", None)
        if isinstance(op, relax.ExternFunc):
            found.append(short[op.global_symbol])
        elif isinstance(op, tvm.ir.GlobalVar):
            found.append("kernel")
    return found


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (beside_a_kernel, "kernel start kernel done kernel"),
        (beside_another, "kernel start kernel start done kernel done kernel"),
        (under_another_name, "start kernel done kernel"),
        (as_a_result, "start kernel done"),
        (read_at_once, "all kernel"),
    ],
)
def test_the_wait_is_ahead_of_the_first_use(build, expected: str) -> None:
    before = calling(build)
    with compiling_for(resolve_target("avx512")):
        after = AsyncAllReduce()(before)
        assert AsyncAllReduce()(after).same_as(after)
    assert calls(after) == expected.split()
    assert after.same_as(before) == (expected == "all kernel")


def test_what_is_exchanged_shares_no_storage() -> None:
    with compiling_for(resolve_target("avx512")):
        mod = ShareStorage()(AsyncAllReduce()(calling(beside_a_kernel)))
    values = {one.var: one.value for one in bindings_of(mod["main"])}
    (start,) = (one for one in values.values() if START_FUNCTION in str(one))
    for operand in (start.args[0], start.args[-1]):
        while isinstance(values[operand], relax.Var):
            operand = values[operand]
        assert operator_name(values[operand]) == ALLOCATION


def test_programs_for_a_gpu_are_left() -> None:
    before = calling(beside_a_kernel)
    with compiling_for(resolve_target("nvidia-h200")):
        assert AsyncAllReduce()(before).same_as(before)
