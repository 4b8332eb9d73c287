"""Storage planning: one arena, its figures, branches, and sizes that a run decides."""

import numpy as np
import pytest
import tvm
from memory_planning import plan_memory, share_storage
from thoroughness import one_in
from tvm import relax, te
from tvm.script import ir as I
from tvm.script import relax as R
from unoptimised import LLVM, machine_of

from tvm_ext.compiler.build import build
from tvm_ext.passes import share_storage as storage_pass
from tvm_ext.relay_passes.dataflow.buffer_lifetimes import BufferLifetimes, buffer_lifetimes
from tvm_ext.relay_passes.expressions import operator_name, value_for
from tvm_ext.relay_passes.spans import bindings_of
from tvm_ext.tensor_spec import SizeRange

op = relax.op
ROW_BYTES = 2 * 3 * 4
# Two rows in the arena, of which the second begins at a multiple of 64 bytes, and the result.
CHAIN_BYTES = 64 + ROW_BYTES + ROW_BYTES


def lower(mod: tvm.IRModule) -> tvm.IRModule:
    passes = [relax.transform.LegalizeOps(), relax.transform.RewriteDataflowReshape()]
    return tvm.transform.Sequential(passes)(mod)


def chain(length: int, shape=(2, 3), dtype: str = "float32") -> tvm.IRModule:
    return lower(operators(length, shape, dtype))


def operators(length: int, shape=(2, 3), dtype: str = "float32") -> tvm.IRModule:
    builder = relax.BlockBuilder()
    value = relax.Var("x", relax.TensorType(list(shape), dtype))
    with builder.function("main", [value]):
        with builder.dataflow():
            for i in range(length):
                value = builder.emit(op.negative(value) if i % 2 else op.abs(value))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return relax.transform.CanonicalizeBindings()(builder.get())


def run(planned: tvm.IRModule, *inputs: np.ndarray) -> list[np.ndarray]:
    machine = machine_of(build(planned, LLVM))
    result = machine["main"](*[tvm.runtime.tensor(value) for value in inputs])
    values = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [value.numpy() for value in values]


def rand(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).uniform(-1, 1, shape).astype("float32")


@pytest.mark.extended
def test_a_long_chain_needs_two_buffers_and_its_result():
    mod = chain(9)
    text = mod.script(show_meta=True)
    planned, record = plan_memory(mod)
    assert mod.script(show_meta=True) == text
    assert (record.planned_peak_bytes, record.unplanned_bytes) == (CHAIN_BYTES, 9 * ROW_BYTES)
    # Alignment is of both.
    assert record.lower_bound_bytes == CHAIN_BYTES
    assert not record.dynamic
    x = rand(2, 3)
    np.testing.assert_array_equal(run(planned, x)[0], np.abs(x))


def cut_rows(most: int, *shape: str | int, whole: tuple[str, ...] = ()) -> tvm.IRModule:
    """Up to ``most`` of each dynamic dimension, which are named, and all of the ``whole`` ones."""
    sizes = [tvm.tirx.Var(size, "int64") if isinstance(size, str) else size for size in shape]
    many = tvm.tirx.const(most, "int64")
    kept = [
        size if isinstance(name, int) or name in whole else tvm.tirx.min(size, many)
        for name, size in zip(shape, sizes, strict=True)
    ]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(sizes, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            cut = builder.emit_te(lambda x: te.compute(kept, lambda *index: x(*index)), x)
            out = builder.emit_output(op.negative(op.exp(op.abs(cut))))
        builder.emit_func_output(out)
    return lower(relax.transform.Normalize()(builder.get()))


@pytest.mark.extended
def test_more_bytes_than_can_be_counted_are_not_planned():
    planned, record = plan_memory(cut_rows(10**9, "n", "m", "k"))
    assert record.dynamic
    value = rand(2, 3, 4)
    np.testing.assert_allclose(run(planned, value)[0], -np.exp(np.abs(value)), rtol=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("most", one_in(2, [100, 10**7, 10**9]))
def test_storage_up_to_a_limit_is_as_large_as_a_run_needs(most):
    planned, record = plan_memory(cut_rows(most, "n", 8))
    assert record.dynamic
    assert str(most * 32) not in planned.script()
    for rows in (1, 99, 250, 3):
        value = rand(rows, 8)
        np.testing.assert_allclose(run(planned, value)[0], -np.exp(np.abs(value[:most])), rtol=1e-5)


def bytes_of_storage(mod: tvm.IRModule) -> dict[relax.Var, tvm.ir.Expr]:
    return {
        binding.var: binding.value.args[0].values[0]
        for binding in bindings_of(mod["main"])
        if operator_name(binding.value) == "relax.memory.alloc_storage"
    }


def wide_and_narrow(rows: tvm.tirx.Var | int, columns: tvm.tirx.Var | int) -> tvm.IRModule:
    """Tensors of 4 and 6 rows, then sums over either axis, and the sum of all."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([rows, columns], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            long = builder.emit(op.concat([op.abs(x)] * 4, axis=0))
            tall = builder.emit(op.exp(builder.emit(op.negative(long))))
            by_row = builder.emit(op.sum(tall, axis=[1]))
            by_column = builder.emit(op.sum(tall, axis=[0]))
            both = [builder.emit(op.sum(builder.emit(op.abs(one)))) for one in (by_row, by_column)]
            out = builder.emit_output(op.add(*both))
        builder.emit_func_output(out)
    return lower(relax.transform.Normalize()(builder.get()))


def of_any_size() -> tvm.IRModule:
    return wide_and_narrow(*(tvm.tirx.Var(name, "int64") for name in "nm"))


@pytest.mark.extended
def test_open_sizes_share_storage_as_known_ones_do():
    known, shared = (share_storage(mod) for mod in (wide_and_narrow(224, 224), of_any_size()))
    # All known sizes are in one arena.
    assert len(bytes_of_storage(known)) == 1
    assert len(bytes_of_storage(shared)) <= 4
    assert "tir_var_upper_bound" not in (shared["main"].attrs or {})
    planned, record = plan_memory(of_any_size())
    assert record.dynamic
    for shape in ((1, 1), (2, 300), (300, 2), (500, 700)):
        x = rand(*shape)
        wanted = 8 * np.exp(-np.abs(x)).sum()
        np.testing.assert_allclose(run(planned, x)[0], wanted, rtol=1e-4)


@pytest.mark.parametrize("sizes", [(5, 7), (1, 900), (900, 1), (0, 3)])
def test_shared_storage_holds_every_tensor_of_a_run(sizes):
    shared = share_storage(of_any_size())
    values = dict(zip("nm", sizes, strict=True))
    room = {var: value_for(size, values) for var, size in bytes_of_storage(shared).items()}
    tensors = [
        one.value.args
        for one in bindings_of(shared["main"])
        if operator_name(one.value) == "relax.memory.alloc_tensor"
    ]
    assert len(tensors) > len(room) > 0
    for storage, _, shape, *_ in tensors:
        extents = [value_for(extent, values) for extent in shape.values]
        assert 4 * np.prod(extents, dtype=int) <= room[storage]


@pytest.mark.extended
def test_no_storage_is_reserved_for_a_limit_times_what_has_none():
    planned, _ = plan_memory(cut_rows(10**9, "n", "m", whole=("m",)))
    assert str(4 * 10**9) not in planned.script()
    value = rand(3, 5)
    np.testing.assert_allclose(run(planned, value)[0], -np.exp(np.abs(value)), rtol=1e-5)


def test_a_range_reserves_storage_beside_any_limit():
    ranges = {"n": SizeRange(1, 10**6)}
    _, record = plan_memory(cut_rows(10**9, "n", 8), ranges=ranges)
    assert record.planned_peak_bytes >= 2 * 10**6 * 32


@pytest.mark.extended
def test_without_reuse_every_value_has_its_own():
    planned, record = plan_memory(chain(9), reuse=False)
    assert record.planned_peak_bytes == record.unplanned_bytes == 9 * ROW_BYTES
    x = rand(2, 3)
    np.testing.assert_array_equal(run(planned, x)[0], np.abs(x))


@pytest.mark.parametrize(("dtype", "size"), [("float16", 2), ("int8", 1), ("int64", 8)])
def test_bytes_follow_the_type(dtype, size):
    _, record = plan_memory(chain(5, dtype=dtype))
    assert record.unplanned_bytes == 5 * 6 * size


def test_weights_are_counted_once():
    weight = relax.const(np.ones((3, 3), "float32"))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([2, 3], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.matmul(builder.emit(op.matmul(x, weight)), weight))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    _, record = plan_memory(lower(builder.get()))
    assert record.weights_bytes == 9 * 4


@pytest.mark.extended
@pytest.mark.parametrize("reuse", [True, False])
def test_a_size_without_upper_bound_is_not_planned_as_static(reuse):
    """See apache/tvm#18663: a lower bound must not be taken for the size."""
    planned, record = plan_memory(chain(6, (tvm.tirx.Var("n", "int64"), 3)), reuse)
    assert record.dynamic
    for rows in (1, 2, 501, 3):
        x = rand(rows, 3)
        np.testing.assert_array_equal(run(planned, x)[0], -np.abs(x))


def test_a_size_that_is_partly_known_is_dynamic_as_well():
    builder = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([n, 3], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.concat([x, x], axis=0))
            out = builder.emit_output(builder.emit(op.sum(y, axis=0)))
        builder.emit_func_output(out)
    planned, record = plan_memory(lower(builder.get()))
    assert record.dynamic
    x = rand(5, 3)
    np.testing.assert_allclose(run(planned, x)[0], 2 * x.sum(axis=0), rtol=1e-5, atol=1e-6)


@I.ir_module
class ReshapeChains:
    @R.function
    def main(x: R.Tensor((4, 6), "float32"), flag: R.Tensor((), "bool")):
        a = R.exp(x)
        if flag:
            b = R.reshape(a, (2, 12))
            c = R.negative(b)
            d = R.reshape(c, (24,))
            e = R.abs(d)
            r = R.reshape(e, (4, 6))
        else:
            f = R.reshape(a, (24,))
            g = R.tanh(f)
            h = R.reshape(g, (2, 12))
            i = R.negative(h)
            j = R.reshape(i, (24,))
            k = R.tanh(j)
            r = R.reshape(k, (4, 6))
        y = R.add(r, a)
        z = R.negative(y)
        return z


def reshape_chains_reference(x: np.ndarray, flag: bool) -> np.ndarray:
    a = np.exp(x)
    return -((a if flag else np.tanh(-np.tanh(a))) + a)


@pytest.mark.extended
@pytest.mark.parametrize("reuse", [True, False])
def test_branches_share_no_storage_that_only_one_of_them_allocates(reuse):
    """See apache/tvm#20191; both branches, more than once, in one process."""
    planned, record = plan_memory(lower(ReshapeChains), reuse)
    assert record.unplanned_bytes > 0
    program = build(planned, tvm.target.Target("llvm"))
    machine = relax.VirtualMachine(program, tvm.cpu())
    x = rand(4, 6)
    for flag in (True, False, False, True, True, False):
        result = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(np.array(flag)))
        wanted = reshape_chains_reference(x, flag)
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.extended
def test_a_fresh_program_may_take_the_second_branch_first():
    x = rand(4, 6)
    for flag in (False, True):
        planned, _ = plan_memory(lower(ReshapeChains))
        (result,) = run(planned, x, np.array(flag))
        wanted = reshape_chains_reference(x, flag)
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.extended
def test_functions_without_branches_are_planned_beside_those_with():
    straight = operators(9)["main"].with_attr("global_symbol", "straight")
    mod = tvm.IRModule({"main": ReshapeChains["main"], "straight": straight})
    planned, record = plan_memory(lower(mod))
    _, alone = plan_memory(lower(ReshapeChains))
    assert record.unplanned_bytes == alone.unplanned_bytes + 9 * ROW_BYTES
    assert record.planned_peak_bytes == alone.planned_peak_bytes + CHAIN_BYTES
    assert {str(v.name_hint) for v in planned.functions} >= {"main", "straight"}


@pytest.mark.extended
def test_what_data_decide_has_storage_of_its_own():
    """The smaller of an input's size and of one that is known in the middle of the run."""
    builder = relax.BlockBuilder()
    n, found = tvm.tirx.Var("n", "int64"), tvm.tirx.Var("found", "int64")
    x = relax.Var("x", relax.TensorType([n], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            # Storage of these is free again when the size is known.
            same = builder.emit(op.negative(builder.emit(op.negative(builder.emit(op.abs(x))))))
            twice = builder.emit(op.concat([same, x]))
            places = builder.match_cast(
                builder.emit(op.nonzero(twice)), relax.TensorType([1, found], "int64")
            )
            size = tvm.tirx.min(found, n)
            cut = builder.emit_te(
                lambda at, x: te.compute((size,), lambda i: x[at[0, i] % n] + 1), places, x
            )
            out = builder.emit_output(op.exp(op.negative(cut)))
        builder.emit_func_output(out)
    planned, record = plan_memory(lower(relax.transform.Normalize()(builder.get())))
    assert record.dynamic
    for values in ([1, 0, 2], [0, 0, 5, 7], [3]):
        x = np.array(values, "float32")
        nonzero = np.nonzero(np.concatenate([np.abs(x), x]))[0][: len(x)] % len(x)
        np.testing.assert_allclose(run(planned, x)[0], np.exp(-x[nonzero] - 1), rtol=1e-5)


def calls_of(mod: tvm.IRModule) -> list[str]:
    """The kernels of the function ``main``, in the order of a run."""
    found = []
    for binding in bindings_of(mod["main"]):
        callee = binding.value.op if isinstance(binding.value, relax.Call) else None
        if isinstance(callee, tvm.ir.GlobalVar):
            found.append(str(callee.name_hint))
    return found


@I.ir_module
class JoinedRows:
    @R.function
    def main(x: R.Tensor((4, 16), "float32"), y: R.Tensor((4, 16), "float32")):
        with R.dataflow():
            a = R.abs(x)
            b = R.exp(y)
            joined = R.concat((a, b, a), axis=0)
            inner = R.concat((b, R.tanh(x)), axis=0)
            first = R.strided_slice(inner, [0], [2], [6])
            last = R.strided_slice(inner, [1], [0], [8])
            out = R.add(R.sum(joined, axis=[0]), R.sum(R.negative(first), axis=[0]))
            total = R.add(out, R.sum(last, axis=[0, 1]))
            R.output(total)
        return total


def joined_rows_reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    inner = np.concatenate([np.exp(y), np.tanh(x)])
    return np.abs(x).sum(0) * 2 + np.exp(y).sum(0) - inner[2:6].sum(0) + inner[:, :8].sum()


@pytest.mark.extended
@pytest.mark.parametrize("poison", [False, True])
def test_rows_are_written_into_a_concatenation_and_read_from_a_slice(poison):
    """Not the operand that is in two places, nor columns, which lie apart from each other."""
    mod = lower(JoinedRows)
    planned, record = plan_memory(mod, poison=poison)
    copied, other = plan_memory(mod, poison=poison, views=False)
    left, all_of_them = (
        [name for name in calls_of(one) if "concat" in name or "slice" in name]
        for one in (planned, copied)
    )
    assert (len(left), len(all_of_them)) == (2, 4)
    assert record.planned_peak_bytes < other.planned_peak_bytes
    x, y = rand(4, 16), rand(4, 16) + 1
    for program in (planned, copied):
        np.testing.assert_allclose(run(program, x, y)[0], joined_rows_reference(x, y), rtol=1e-4)


@pytest.mark.extended
def test_a_chain_needs_one_buffer_where_kernels_write_in_place():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([64, 64], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for unary in (op.abs, op.negative, op.exp, op.tanh):
                value = builder.emit(unary(value))
            out = builder.emit_output(op.sum(value, axis=[0, 1]))
        builder.emit_func_output(out)
    mod = lower(builder.get())
    _, apart = plan_memory(mod, in_place=False)
    planned, record = plan_memory(mod, poison=True)
    buffer = 64 * 64 * 4
    assert apart.planned_peak_bytes == 2 * buffer + 4
    assert record.planned_peak_bytes == record.lower_bound_bytes == buffer + 4
    x = rand(64, 64)
    wanted = np.tanh(np.exp(-np.abs(x))).sum()
    np.testing.assert_allclose(run(planned, x)[0], wanted, rtol=1e-4)


@pytest.mark.extended
def test_an_operand_that_is_needed_later_stays():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4, 16], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            a = builder.emit(op.abs(x))
            b = builder.emit(op.negative(a))
            c = builder.emit(op.add(a, builder.emit(op.exp(b))))
            # Once more, as two operands of one call.
            out = builder.emit_output(op.multiply(c, c))
        builder.emit_func_output(out)
    planned, _ = plan_memory(lower(builder.get()), poison=True)
    x = rand(4, 16)
    wanted = (np.abs(x) + np.exp(-np.abs(x))) ** 2
    np.testing.assert_allclose(run(planned, x)[0], wanted, rtol=1e-5)


@pytest.mark.extended
def test_an_open_batch_has_one_arena_as_small_as_that_of_an_item():
    def halves(rows: tvm.tirx.Var | int) -> tvm.IRModule:
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType([rows, 64, 64], "float32"))
        with builder.function("main", [x]):
            with builder.dataflow():
                value = x
                # Each is used twice, and every second one has half the size.
                for _ in range(4):
                    twice = builder.emit(op.concat([value, value], axis=2))
                    once = builder.emit(op.sum(op.reshape(twice, (rows, 64, 2, 64)), axis=2))
                    value = builder.emit(op.add(once, op.exp(once)))
                out = builder.emit_output(value)
            builder.emit_func_output(out)
        return lower(relax.transform.Normalize()(builder.get()))

    n = tvm.tirx.Var("n", "int64")
    planned, _ = plan_memory(halves(n), poison=True)
    _, known = plan_memory(halves(1))
    shared = share_storage(halves(n))
    storages = bytes_of_storage(shared)
    result = 64 * 64 * 4
    item = sum(value_for(size, {"n": 1}) for size in storages.values())
    assert item + result <= known.planned_peak_bytes + 64 * len(storages)
    for rows in (1, 3):
        x = rand(rows, 64, 64) / 100
        wanted = x
        for _ in range(4):
            wanted = 2 * wanted + np.exp(2 * wanted)
        np.testing.assert_allclose(run(planned, x)[0], wanted, rtol=1e-3)


def test_poison_shows_memory_that_is_used_again_too_early(monkeypatch):
    def shortened(mod: tvm.IRModule) -> dict[tvm.ir.GlobalVar, BufferLifetimes]:
        found = buffer_lifetimes(mod)
        for lives in found.values():
            lives.last = {buffer: lives.used[buffer] for buffer in lives.last}
        return found

    x = rand(2, 3)
    planned, _ = plan_memory(chain(5), poison=True)
    assert np.isfinite(run(planned, x)[0]).all()
    monkeypatch.setattr(storage_pass, "buffer_lifetimes", shortened)
    planned, _ = plan_memory(chain(5), poison=True)
    assert np.isnan(run(planned, x)[0]).all()


@I.ir_module
class CalledFunction:
    @R.function(private=True)
    def inner(a: R.Tensor((4, 16), "float32")) -> R.Tensor((4, 16), "float32"):
        b = R.abs(a)
        return b

    @R.function
    def main(x: R.Tensor((4, 16), "float32")):
        a = R.exp(x)
        called = CalledFunction.inner(a)
        c = R.tanh(called)
        d = R.sum(c, axis=[0])
        return d


@pytest.mark.extended
def test_what_a_function_gives_is_not_taken_for_its_argument():
    """It may be its argument, and is memory of its own here: nothing is written in its place."""
    planned, _ = plan_memory(lower(CalledFunction), poison=True)
    x = rand(4, 16)
    np.testing.assert_allclose(run(planned, x)[0], np.tanh(np.exp(x)).sum(0), rtol=1e-5)
