"""Kernels before LLVM: what they promise of their arguments, and accesses by flat views."""

import itertools

import numpy as np
import pytest
import tvm
import tvm_ffi
from combinations import pairwise
from machines import _cpu
from small_models import model, node, rand, value
from symbolic_extents import size
from tvm import s_tir, te, tirx

import tvm_ext
from tvm_ext.configs.errors import CONTRADICTING_SIZES
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules import lowering_pipeline
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.cpu.llvm_preparation import (
    ArraysOnStack,
    BoolArraysAsBytes,
    FlattenFewAccesses,
    JoinArgumentChecks,
    NoAliasOfLoneArguments,
    RoundToIntegers,
    UnalignedArguments,
    has_flat_arrays,
)
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.statements import in_root_block, sequence, stack_array


def unmarked(count: int) -> tirx.PrimFunc:
    """A function of ``count`` buffers that says nothing of overlapping."""
    inputs = [te.placeholder((4,), "int64", f"x{i}") for i in range(count - 1)]
    result = te.compute((4,), lambda i: sum((x[i] for x in inputs), tirx.const(1, "int64")))
    return te.create_prim_func([*inputs, result]).without_attr("tirx.noalias")


@pytest.mark.parametrize("count", [1, 2])
def test_only_one_buffer_overlaps_with_no_other(count: int) -> None:
    mod = tvm.IRModule({"main": unmarked(count)})
    found = NoAliasOfLoneArguments()(mod)
    assert bool((found["main"].attrs or {}).get("tirx.noalias")) == (count == 1)
    tvm.ir.assert_structural_equal(NoAliasOfLoneArguments()(found), found)
    assert count == 1 or found["main"].same_as(mod["main"])


@pytest.mark.extended
def test_kernels_beside_the_function_of_sizes_are_read_by_gathers() -> None:
    """Its name is behind that of the kernel, as in every program of symbolic sizes."""
    x = te.placeholder((size("n"), size("m")), "float32", "x")
    spread = te.compute(x.shape, lambda row, i: x[row, tirx.floormod(i * 3, x.shape[1])])
    kernel = te.create_prim_func([x, spread])
    machine = _cpu("avx512")
    scheduled, _ = schedule_kernel(kernel, machine.with_cores(1))
    functions = {"a_kernel": scheduled, "shape_func": unmarked(1)}
    named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    library = compile_kernels(tvm.IRModule(named), machine.tvm_target()).mod
    assert "vgather" in library.inspect_source("asm")


def kept_in_arrays(rows: int | tirx.Var, steps: int) -> tirx.PrimFunc:
    """``y[i, j] = x[i, j] + steps``, by a one-element array for each step."""
    x, y = (tirx.decl_buffer((rows, 3), "float32", name) for name in "xy")
    i, j = (tirx.Var(name, "int64") for name in "ij")
    zero = [tirx.const(0, "int64")]
    statements, value = [], tirx.BufferLoad(x, [i, j])
    for _ in range(steps):
        array, declaration = stack_array(1, "float32", "array")
        statements += [declaration, tirx.BufferStore(array, value + 1.0, zero)]
        value = tirx.BufferLoad(array, zero)
    body = sequence([*statements, tirx.BufferStore(y, value, [i, j])])
    for var, extent in ((j, 3), (i, rows)):
        body = tirx.For(var, tirx.const(0, "int64"), extent, tirx.ForKind.SERIAL, body)
    marks = {"s_tir": True, "global_symbol": "main", "tirx.noalias": True}
    return tirx.PrimFunc([x, y], in_root_block(body)).with_attrs(marks)


@pytest.mark.extended
@pytest.mark.parametrize("rows", [5, size("rows")], ids=["static", "symbolic"])
def test_a_few_accesses_of_parameters_become_flat_ones(rows: int | tirx.Var) -> None:
    mod = tvm.IRModule({"main": kept_in_arrays(rows, steps=40)})
    flat = FlattenFewAccesses()(mod)
    assert not has_flat_arrays(mod["main"])
    assert has_flat_arrays(flat["main"])
    assert "tirx.FlattenBuffer" in lowering_pipeline._idle_passes(flat["main"])
    tvm.ir.assert_structural_equal(FlattenFewAccesses()(flat), flat)
    x = np.arange(15, dtype="float32").reshape(5, 3)
    y = tvm.runtime.tensor(np.zeros_like(x))
    built = compile_kernels(mod, _cpu("avx2").with_cores(1).tvm_target())
    built(tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), x + 40)


def test_where_more_are_to_be_made_flat_tvm_does_it() -> None:
    mod = tvm.IRModule({"main": kept_in_arrays(5, steps=4)})
    assert FlattenFewAccesses()(mod)["main"].same_as(mod["main"])
    assert "tirx.FlattenBuffer" not in lowering_pipeline._idle_passes(mod["main"])


SIZE = 256


def doubled() -> tirx.PrimFunc:
    x = te.placeholder((SIZE,), "float32", "x")
    kernel = te.create_prim_func([x, te.compute((SIZE,), lambda i: x[i] + x[i], "y")])
    machine = _cpu("avx2").with_cores(1)
    return schedule_kernel(kernel, machine)[0].with_attr("global_symbol", "doubled")


def test_the_promise_goes_and_nothing_else() -> None:
    packed = tirx.transform.MakePackedAPI()(
        tirx.transform.BindTarget(_cpu("avx2").tvm_target().with_host("llvm"))(
            tvm.IRModule({"doubled": doubled()})
        )
    )
    found = UnalignedArguments()(packed)
    assert packed.script().count("storage_alignment") == 2
    assert "storage_alignment" not in found.script()
    assert found.script().count("assert") == packed.script().count("assert")
    assert UnalignedArguments()(found).script() == found.script()


def test_sizes_strides_and_offsets_are_one_check() -> None:
    x, y = (te.placeholder((size("n"), 4), "float32", name) for name in "xy")
    kernel = te.create_prim_func([x, y, te.compute(x.shape, lambda *at: x[at] + y[at], "z")])
    target = _cpu("avx2").tvm_target().with_host("llvm")
    bound = tirx.transform.BindTarget(target)(tvm.IRModule({"sums": kernel}))
    packed = tirx.transform.MakePackedAPI()(
        s_tir.transform.LowerOpaqueBlock()(s_tir.transform.ConvertBlocksToOpaque()(bound))
    )
    joined = JoinArgumentChecks()(packed)
    before, after = (nodes(mod["sums"].body, tirx.AssertStmt) for mod in (packed, joined))
    assert len(before) > 20
    (check,) = after
    # Fields of TVM's enumeration: the offset, and numbers in arrays of sizes and strides.
    calls = [call for call in nodes(check, tvm.ir.Call) if call.op.name == "tirx.tvm_struct_get"]
    assert {int(call.args[2]) for call in calls} == {8, 17}
    assert JoinArgumentChecks()(joined).script() == joined.script()


def test_tensors_of_sizes_that_contradict_each_other_are_refused() -> None:
    x, y = (te.placeholder((size("n"),), "float32", name) for name in "xy")
    kernel = te.create_prim_func([x, y, te.compute(x.shape, lambda i: x[i] + y[i], "z")])
    machine = _cpu("avx2").with_cores(1)
    scheduled = schedule_kernel(kernel, machine)[0].with_attr("global_symbol", "sums")
    built = compile_kernels(tvm.IRModule({"sums": scheduled}), machine.tvm_target())
    for sizes in ((5, 4, 5), (4, 4, 5)):
        arrays = [tvm_ffi.from_dlpack(np.ones(n, "float32")) for n in sizes]
        with pytest.raises(ValueError, match=CONTRADICTING_SIZES):
            built["sums"](*arrays)
    rows = np.ones((4, 2), "float32")
    strided = tvm_ffi.from_dlpack(rows[:, 0])
    with pytest.raises(ValueError, match=CONTRADICTING_SIZES):
        built["sums"](strided, strided, strided)


@pytest.mark.extended
def test_arrays_of_bools_hold_bytes() -> None:
    """Once per row and column it is known whether the mean over the channels is positive."""
    steps = [
        node("ReduceMean", ["x"], ["mean"], axes=[1], keepdims=1),
        node("Greater", ["mean", "zero"], ["is_positive"]),
        node("Where", ["is_positive", "weight", "x"], ["y"]),
    ]
    weights = {"zero": np.float32(0), "weight": rand(8, 1, 1)}
    made = model(steps, [value("x", [2, 8, 8, 8])], [value("y", None)], **weights)
    x = rand(2, 8, 8, 8, seed=1)
    expected = np.where(x.mean(1, keepdims=True) > 0, weights["weight"], x)
    np.testing.assert_array_equal(tvm_ext.compile(made).run({"x": x})["y"], expected)


def test_bools_become_bytes_and_conditions_of_bytes() -> None:
    keep, declaration = stack_array(SIZE, "bool", "keep")
    x = tirx.decl_buffer((SIZE,), "float32", "x")
    i = tirx.Var("i", "int64")
    store = tirx.BufferStore(keep, tirx.BufferLoad(x, [i]) > 0, [i])
    use = tirx.BufferStore(x, tirx.Select(tirx.BufferLoad(keep, [i]), 1.0, 2.0), [i])
    loop = tirx.For(i, tirx.const(0, "int64"), tirx.const(SIZE, "int64"), 0, sequence([store, use]))
    func = tirx.PrimFunc([x], in_root_block(sequence([declaration, loop])))
    found = BoolArraysAsBytes()(tvm.IRModule({"main": func}))["main"]
    assert [str(one.buffer.dtype) for one in nodes(found.body, tirx.AllocBuffer)] == ["int8"]
    (choice,) = nodes(found.body, tirx.Select)
    assert isinstance(choice.condition, tirx.NE)
    assert BoolArraysAsBytes()(tvm.IRModule({"main": found}))["main"].same_as(found)


def test_vectors_of_bools_become_vectors_of_bytes() -> None:
    keep, declaration = stack_array(SIZE, "bool", "keep")
    x = tirx.decl_buffer((SIZE,), "float32", "x")
    lanes = [tirx.Ramp(tirx.const(0, "int64"), tirx.const(1, "int64"), SIZE)]
    zeros = tirx.Broadcast(tirx.const(0, "float32"), SIZE)
    store = tirx.BufferStore(keep, tirx.BufferLoad(x, lanes) > zeros, lanes)
    value = tirx.Select(tirx.BufferLoad(keep, lanes), tirx.BufferLoad(x, lanes), zeros)
    use = tirx.BufferStore(x, value, lanes)
    func = tirx.PrimFunc([x], in_root_block(sequence([declaration, store, use])))
    found = BoolArraysAsBytes()(tvm.IRModule({"main": func}))["main"]
    stored = next(one for one in nodes(found.body, tirx.BufferStore) if one.buffer.name == "keep")
    assert str(stored.value.ty) == f"int8x{SIZE}"


@pytest.mark.extended
@pytest.mark.parametrize("offset", [0, 1, 4])
def test_memory_that_begins_anywhere(offset: int) -> None:
    built = compile_kernels(tvm.IRModule({"doubled": doubled()}), _cpu("avx2").tvm_target())
    room = np.arange(2 * SIZE + 16, dtype="float32")
    x, y = room[offset : offset + SIZE], np.zeros(SIZE + 8, "float32")[offset : offset + SIZE]
    built["doubled"](tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(y))
    np.testing.assert_array_equal(y, 2 * x)


@pytest.mark.extended
def test_a_value_that_all_lanes_share_is_computed_as_the_others_are() -> None:
    """An element is padded to a row, of each of which an exponential is taken, in one kernel."""
    steps = [
        node("Relu", ["x"], ["r"]),
        node("Pad", ["r", "pads"], ["p"], mode="edge"),
        node("Elu", ["p"], ["y"]),
    ]
    pads = np.array([0, 0, 2, 0, 0, 0])
    shapes = [value("x", [1, 1, 1])], [value("y", [1, 1, 3])]
    compiled = tvm_ext.compile(model(steps, *shapes, pads=pads), _cpu("avx2"))
    assert len(compiled.report.kernels) == 1
    x = np.full((1, 1, 1), 0.5, "float32")
    np.testing.assert_array_equal(compiled.run({"x": x})["y"], np.full((1, 1, 3), 0.5, "float32"))


def looked_up(shape: tuple[int, ...], dtype: str) -> tirx.PrimFunc:
    """As ``ActivationLookupTables`` writes it."""
    x, table = te.placeholder(shape, "uint8", "x"), te.placeholder((256,), dtype, "table")
    result = te.compute(shape, lambda *at: table(tirx.Cast("int32", x(*at))), "look_up")
    return te.create_prim_func([x, table, result]).with_attr("global_symbol", "main")


@pytest.mark.extended
@pairwise(dtype=["uint8", "int8"], shape=[(8,), (48,), (3, 32), (1000,), (5, 7, 64)])
def test_every_byte_is_found_in_its_table(shape: tuple[int, ...], dtype: str) -> None:
    host = host_description()
    scheduled, _ = schedule_kernel(looked_up(shape, dtype), host)
    built = compile_kernels(tvm.IRModule({"main": scheduled}), host.tvm_target())
    table = np.random.default_rng(0).permutation(256).astype(np.uint8).view(dtype)
    x = np.resize(np.arange(255, -1, -1, dtype=np.uint8), shape)
    out = tvm.runtime.tensor(np.zeros(shape, dtype))
    built["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(table), out)
    np.testing.assert_array_equal(out.numpy(), table[x])


@pytest.mark.extended
@pytest.mark.parametrize(("target", "found"), [("avx512-amx", True), ("avx2", False)])
def test_tables_are_permuted_where_a_cpu_can(target: str, found: bool) -> None:
    machine = resolve_target(target)
    scheduled, _ = schedule_kernel(looked_up((64, 1024), "uint8"), machine)
    built = compile_kernels(tvm.IRModule({"main": scheduled}), machine.tvm_target())
    code = str(built.mod.inspect_source("s"))
    assert ("vpermi2b" in code or "vpermt2b" in code) is found
    if found:
        # One load of 64 indices, not of each.
        assert "vpinsrb" not in code


def nibbles(lanes: int) -> tirx.PrimFunc:
    """The second integer of each word, as ``FuseDequantizeMatmul`` writes it."""
    words = te.placeholder((lanes,), "uint32", "words")
    mask, shift = (tirx.const(number, "uint32") for number in (15, 4))

    def each(lane: tirx.Var) -> tvm.ir.Expr:
        return tirx.Cast("float32", tirx.shift_right(words(lane), shift) & mask)

    result = te.compute((lanes,), each, "numbers")
    return te.create_prim_func([words, result]).with_attr("global_symbol", "main")


@pytest.mark.parametrize("lanes", [16, 64, 4096 + 7])
def test_nibbles_are_the_floats_that_they_were(lanes: int) -> None:
    host = host_description()
    scheduled, _ = schedule_kernel(nibbles(lanes), host)
    built = compile_kernels(tvm.IRModule({"main": scheduled}), host.tvm_target())
    words = np.random.default_rng(0).integers(0, 1 << 32, lanes, np.uint32)
    found = tvm.runtime.tensor(np.zeros(lanes, "float32"))
    built["main"](tvm.runtime.tensor(words), found)
    np.testing.assert_array_equal(found.numpy(), (words >> 4 & 15).astype("float32"))


@pytest.mark.parametrize(("target", "found"), [("avx512", True), ("avx2", False)])
def test_a_permutation_takes_the_place_of_a_mask_and_a_conversion(target, found) -> None:
    machine = resolve_target(target)
    scheduled, _ = schedule_kernel(nibbles(4096), machine)
    built = compile_kernels(tvm.IRModule({"main": scheduled}), machine.tvm_target())
    code = str(built.mod.inspect_source("s"))
    assert ("vpermps" in code or "vpermd" in code) is found
    assert ("vcvtdq2ps" in code) is not found


def rounded(dtype: str = "int32") -> tirx.PrimFunc:
    x = te.placeholder((67,), "float32", "x")
    result = te.compute((67,), lambda i: tirx.nearbyint(x[i] * 3).astype(dtype), "rounded")
    return te.create_prim_func([x, result]).with_attr("global_symbol", "main")


def test_halves_round_to_even_and_what_does_not_fit_becomes_the_lowest_number() -> None:
    host = host_description()
    scheduled, _ = schedule_kernel(rounded(), host)
    built = compile_kernels(tvm.IRModule({"main": scheduled}), host.tvm_target())
    x = np.linspace(-40, 40, 67).astype("float32") / np.float32(6)
    x[:5] = [np.nan, 1e30, -1e30, 0.5 / 3, 2.5 / 3]
    out = tvm.runtime.tensor(np.zeros(67, "int32"))
    built["main"](tvm.runtime.tensor(x), out)
    with np.errstate(invalid="ignore"):
        wanted = np.rint(x * np.float32(3)).astype("int32")
    wanted[:3] = np.iinfo("int32").min
    np.testing.assert_array_equal(out.numpy(), wanted)


@pytest.mark.parametrize(
    ("target", "dtype", "found"),
    [("avx512", "int32", True), ("avx512", "int64", False), ("avx2", "int32", False)],
)
def test_rounding_and_conversion_are_one_instruction(target: str, dtype: str, found: bool) -> None:
    func = rounded(dtype).with_attr("target", resolve_target(target).tvm_target())
    new = RoundToIntegers()(tvm.IRModule({"main": func}))["main"]
    assert ("lrint" in new.script()) is found
    assert tvm_ffi.structural_equal(new, func) is not found


# Arrays of a kernel: on the stack, or from a pool of the thread.


def with_arrays(count: int, size: int) -> tirx.PrimFunc:
    """So many arrays of ``size`` floats, each twice the one before from its end on."""
    made = [stack_array(size, "float32", f"array{number}") for number in range(count)]
    source, result = (tirx.decl_buffer((size,), "float32", name) for name in "xy")
    loops = []
    for read, written in itertools.pairwise([source, *(array for array, _ in made), result]):
        at = tirx.Var("at", "int64")
        value = tirx.BufferLoad(read, [tirx.const(size - 1, "int64") - at])
        store = tirx.BufferStore(written, value * tirx.const(2, "float32"), [at])
        ends = tirx.const(0, "int64"), tirx.const(size, "int64")
        loops.append(tirx.For(at, *ends, tirx.ForKind.SERIAL, store))
    body = sequence([*(declaration for _, declaration in made), *loops])
    func = tirx.PrimFunc([source, result], in_root_block(body))
    return func.with_attr("tirx.noalias", True).with_attr("global_symbol", "main")


@pytest.mark.extended
@pytest.mark.parametrize(
    ("count", "size", "is_pooled"),
    [(1, 256, False), (1, 2048, False), (1, 2049, True), (3, 2048, False)],
)
def test_arrays_of_a_few_kib_lie_on_the_stack(count: int, size: int, is_pooled: bool) -> None:
    kernel = with_arrays(count, size)
    target = host_description().tvm_target()
    built = compile_kernels(tvm.IRModule({"main": kernel}), target)
    assert ("TVMBackendAllocWorkspace" in str(built.mod.inspect_source("ll"))) is is_pooled
    x = np.arange(size, dtype="float32")
    y = tvm.runtime.tensor(np.empty_like(x))
    built["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), (x if count % 2 else x[::-1]) * 2 ** (count + 1))


def test_more_than_a_stack_holds_comes_from_the_pool() -> None:
    few, many = (
        ArraysOnStack()(tvm.IRModule({"main": with_arrays(count, 2048)}))["main"]
        for count in (8, 9)
    )
    assert few.script().count("disable_lower_builtin") == 8
    assert "disable_lower_builtin" not in many.script()
