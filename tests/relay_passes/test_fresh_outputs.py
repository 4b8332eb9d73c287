"""Which outputs are memory of their own, and which programs may write to their inputs."""

import numpy as np
import pytest
import tvm
from every_pass_modules import build
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T
from unoptimised import HOST

import tvm_ext
from tvm_ext.relay_passes.fresh_outputs import shared_outputs, writes_to_inputs

op = relax.op


def halves(emit, x: relax.Var) -> list[relax.Expr]:
    """A field of a split twice, and the other one."""
    both = emit(op.split(x, 2, axis=1))
    return [emit(relax.TupleGetItem(both, place)) for place in (0, 0, 1)]


def lowered(outputs) -> relax.Function:
    return relax.transform.LegalizeOps()(build([4, 6], outputs))["main"]


def test_a_field_taken_out_twice_is_one_memory() -> None:
    assert shared_outputs(lowered(halves)) == [False, True, False]


def test_what_a_packed_function_returns_is_not_known() -> None:
    def outputs(emit, x: relax.Var) -> list[relax.Expr]:
        given = op.call_pure_packed("given_back", x, ty_args=[x.ty])
        return [emit(given), emit(op.exp(x))]

    mod = relax.transform.LegalizeOps()(build([4, 6], outputs))
    assert shared_outputs(mod["main"]) == [True, False]
    assert writes_to_inputs(mod)
    assert not writes_to_inputs(relax.transform.LegalizeOps()(build([4, 6], halves)))


def test_a_packed_function_that_is_known_only_reads() -> None:
    def outputs(emit, x: relax.Var) -> list[relax.Expr]:
        shape = op.call_pure_packed(
            relax.ExternFunc("vm.builtin.tensor_to_shape"), x, ty_args=[relax.ShapeType(ndim=4)]
        )
        failed = op.call_pure_packed("refuses", tvm.ir.StringImm("why"), ty_args=[x.ty])
        return [emit(shape), emit(failed)]

    assert not writes_to_inputs(build([4], outputs))


@I.ir_module
class InPlace:
    @T.prim_func(s_tir=True, private=True)
    def add_one(x: T.Buffer((T.int64(64), T.int64(1024)), "float32")):
        for i, j in T.grid(T.int64(64), T.int64(1024)):
            with T.sblock("block"):
                v_i, v_j = T.axis.remap("SS", [i, j])
                x[v_i, v_j] = x[v_i, v_j] + T.float32(1)

    @R.function
    def main(x: R.Tensor((64, 1024), "float32")):
        with R.dataflow():
            y = R.call_tir_inplace(
                InPlace.add_one,
                (x,),
                inplace_indices=[0],
                out_ty=R.Tensor((64, 1024), "float32"),
            )
            R.output(y)
        return y


@pytest.mark.parametrize("level", ["O0", "O3"])
def test_an_input_that_a_kernel_writes_to_stays_the_users(level: str) -> None:
    room = np.zeros(64 * 1024 + 16, "float32")
    given = room[-room.ctypes.data % 64 // 4 :][: 64 * 1024].reshape(64, 1024)
    compiled = tvm_ext.compile(InPlace, HOST, opt_level=level)
    assert compiled.report.memory.copied_outputs is None
    found = next(iter(compiled.run({"x": given}).values()))
    np.testing.assert_array_equal(found, np.ones((64, 1024)))
    assert not given.any()
