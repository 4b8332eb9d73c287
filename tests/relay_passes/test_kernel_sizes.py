"""FuseOperators: kernels whose sizes are written in another way than those of their arguments."""

from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, te, tirx

from tvm_ext.relay_passes.fuse_operators import FuseOperators
from tvm_ext.relay_passes.kernel_sizes import sizes_as_called, sizes_in_order

Size = Callable[[tirx.Var, tirx.Var], tirx.Expr]
FOUR = tirx.IntImm("int64", 4)
SPELLINGS: dict[str, tuple[Size, Size]] = {
    "sum": (lambda n, m: n + m, lambda n, m: m + n),
    "product": (lambda n, m: n * m, lambda n, m: m * n),
    "least": (lambda n, m: tirx.min(n, m) + 1, lambda n, m: tirx.min(m, n) + 1),
    "of_itself": (lambda n, m: tirx.min(n, FOUR) + n, lambda n, m: n + tirx.min(n, FOUR)),
}


def with_own_size(*tensors: te.Tensor) -> te.Tensor:
    size = tensors[0].shape[0].astype("float32")
    return te.compute(tensors[0].shape, lambda i: sum(one[i] for one in tensors) + size)


def twice(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i: x[i] * 2)


def module(given: list[Size], written: list[Size], result: Size) -> tvm.IRModule:
    """Arrays of ``given`` sizes for a kernel that says ``written``, and one more kernel."""
    n, m = (tirx.Var(name, "int64") for name in "nm")

    def array(name: str, size: tirx.Expr) -> relax.Var:
        return relax.Var(name, relax.TensorType([size], "float32"))

    arrays = [array(f"x{place}", size(n, m)) for place, size in enumerate(given)]
    likes = [array(f"y{place}", size(n, m)) for place, size in enumerate(written)]
    params = [array("a", n), array("b", m), *arrays]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            call = builder.call_te(with_own_size, *likes)
            fields = [*arrays, *call.args[1].fields[len(likes) :]]
            ty = relax.TensorType([result(n, m)], "float32")
            call = relax.Call(call.op, [call.args[0], relax.Tuple(fields)], None, [ty])
            output = builder.emit_output(builder.emit_te(twice, builder.emit(call)))
        builder.emit_func_output(output)
    return relax.transform.AnnotateTIROpPattern()(builder.get())


def kernel_calls(mod: tvm.IRModule) -> int:
    return sum(len(block.bindings) for block in mod["main"].body.blocks)


def assert_twice_the_sum(mod: tvm.IRModule, lengths: Callable[[int, int], int], arrays: int):
    machine = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    for n, m in ((2, 3), (7, 5)):
        xs = [np.arange(lengths(n, m), dtype="float32") + one for one in range(arrays)]
        inputs = [np.zeros(n, "float32"), np.zeros(m, "float32"), *xs]
        got = machine["main"](*map(tvm.runtime.tensor, inputs)).numpy()
        np.testing.assert_array_equal(got, 2 * (sum(xs) + lengths(n, m)))


LENGTHS: dict[str, Callable[[int, int], int]] = {
    "sum": lambda n, m: n + m,
    "product": lambda n, m: n * m,
    "least": lambda n, m: min(n, m) + 1,
    "of_itself": lambda n, m: n + min(n, 4),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_kernels_are_fused_however_their_sizes_are_written(spelling: str) -> None:
    given, written = SPELLINGS[spelling]
    mod = relax.transform.FuseTIR()(FuseOperators()(module([given], [written], written)))
    assert kernel_calls(mod) == 1
    assert_twice_the_sum(mod, LENGTHS[spelling], 1)


@pytest.mark.extended
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_arguments_of_one_kernel_may_be_written_in_two_ways(spelling: str) -> None:
    given, written = SPELLINGS[spelling]
    mod = module([given, written], [written, given], given)
    mod = relax.transform.FuseTIR()(FuseOperators()(mod))
    assert kernel_calls(mod) == 1
    assert_twice_the_sum(mod, LENGTHS[spelling], 2)


@pytest.mark.extended
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_kernel_of_one_size_for_both_ways_to_write_it_stays_alone(spelling: str) -> None:
    def alone(n: tirx.Var, m: tirx.Var) -> tirx.Expr:
        return n

    given, written = SPELLINGS[spelling]
    mod = module([given, written], [alone, alone], given)
    mod = relax.transform.FuseTIR()(FuseOperators()(mod))
    assert kernel_calls(mod) == 2
    assert_twice_the_sum(mod, LENGTHS[spelling], 2)


def test_a_module_with_sizes_as_they_are_called_is_left_alone() -> None:
    given, _ = SPELLINGS["of_itself"]
    mod = module([given], [given], given)
    assert sizes_as_called(mod).same_as(mod)


def called_both_ways_round() -> tvm.IRModule:
    """Two calls of one kernel whose sizes come in two orders."""
    n, m = (tirx.Var(name, "int64") for name in "nm")
    x = relax.Var("x", relax.TensorType([n + m], "float32"))
    params = [
        relax.Var(name, relax.TensorType([size], "float32"))
        for name, size in {"a": n, "b": m}.items()
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", [*params, x]):
        with builder.dataflow():
            call = builder.call_te(twice, x)
            first = builder.emit(call)
            kernel = builder.get()[call.args[0]]
            array, *sizes, result = kernel.params
            turned = tirx.PrimFunc(
                [array, *sizes[::-1], result], kernel.body, kernel.ret_type, kernel.attrs
            )
            given = [first, *call.args[1].fields[:0:-1]]
            name = builder.add_func(turned, "turned")
            again = relax.Call(call.op, [name, relax.Tuple(given)], None, call.ty_args)
            output = builder.emit_output(again)
        builder.emit_func_output(output)
    return builder.get()


def test_kernels_that_are_given_their_sizes_in_another_order_are_one() -> None:
    """TVM takes the sizes out of a set: here two calls of a kernel have them both ways round."""
    mod = sizes_in_order(called_both_ways_round())
    assert len(mod.functions) == 2
    machine = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    xs = [np.arange(size, dtype="float32") for size in (2, 3, 5)]
    got = machine["main"](*map(tvm.runtime.tensor, xs)).numpy()
    np.testing.assert_array_equal(got, 4 * xs[-1])


def test_kernels_with_names_of_their_own_stay() -> None:
    """Whoever has given a kernel a name may call it from outside."""
    given = called_both_ways_round()
    kernels = [name for name, func in given.functions.items() if isinstance(func, tirx.PrimFunc)]
    for name in kernels:
        given[name] = given[name].with_attr("global_symbol", str(name.name_hint))
    unused = tirx.PrimFunc([], tirx.Evaluate(tirx.const(0))).with_attr("global_symbol", "unused")
    given["unused"] = unused
    mod = sizes_in_order(given)
    for name in (*kernels, "unused"):
        assert tvm_ffi.structural_equal(mod[name], given[name])
