"""SpmdPartition: the programs of all devices together compute what the whole program does."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from thoroughness import one_in
from tvm import relax, tirx
from unoptimised import HOST, machine_of

from tvm_ext.configs.sharding_record import ShardingRecord
from tvm_ext.distributed.collective_functions import register_collectives, use_communicator
from tvm_ext.distributed.group_memory import GroupMemory
from tvm_ext.hardware.targets import compiling_for
from tvm_ext.relay_passes.common_subexpressions import eliminate_common_subexpr
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.legalize_ops import legalize_ops
from tvm_ext.relay_passes.spans import bindings_of, write_origins
from tvm_ext.relay_passes.spmd_partition import SpmdPartition, sharding_of

op = relax.op
NUMBERS = np.random.default_rng(0)
Body = Callable[[Any, relax.Expr], relax.Expr]


def weights(*shape: int) -> relax.Expr:
    return relax.const(NUMBERS.standard_normal(shape, dtype=np.float32) / 4)


def module(body: Body, *shape: int | str) -> tvm.IRModule:
    """``main(x)`` of one output, or of several."""
    sizes = [tirx.Var(n, "int64") if isinstance(n, str) else n for n in shape]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(sizes, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            found = body(builder.emit, x)
            outputs = builder.emit_output(found)
        builder.emit_func_output(outputs)
    return builder.get()


def partitioned(mod: tvm.IRModule, devices: int = 2, **options: Any) -> list[tvm.IRModule]:
    with compiling_for(HOST):
        programs = [SpmdPartition(devices=devices, rank=n, **options)(mod) for n in range(devices)]
        for one in programs:
            relax.analysis.well_formed(one)
            # A second run changes nothing.
            assert SpmdPartition(devices=devices, **options)(one).same_as(one)
    return programs


def record_of(mod: tvm.IRModule) -> ShardingRecord:
    record = sharding_of(mod)
    assert record is not None
    return record


def kinds(mod: tvm.IRModule) -> list[str]:
    return [one.kind for one in record_of(mod).collectives]


def compiled(mod: tvm.IRModule) -> Any:
    return tvm.compile(mod, HOST.tvm_target())


def outputs_of(program: Any, array: np.ndarray) -> list[np.ndarray]:
    machine = machine_of(program)
    result = machine["main"](tvm.runtime.tensor(array))
    fields = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [field.numpy() for field in fields]


def run_together(programs: list[tvm.IRModule], array: np.ndarray) -> list[np.ndarray]:
    """The outputs of programs that a thread each runs, put together."""
    register_collectives(is_disco=False)
    record, memory = record_of(programs[0]), GroupMemory(len(programs))
    built = [compiled(one) for one in programs]
    found: dict[int, list[np.ndarray]] = {}
    exchanged = []
    failed: list[Exception] = []

    def look() -> None:
        if failed:
            raise failed[0]

    def run(rank: int) -> None:
        try:
            run_one(rank)
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    def run_one(rank: int) -> None:
        communicator = memory.communicator(rank, look)
        use_communicator(communicator)
        own, axis = array, record.inputs[0]
        if axis is not None:
            own = np.ascontiguousarray(np.split(array, len(programs), axis)[rank])
        found[rank] = outputs_of(built[rank], own)
        exchanged.append(dict(communicator.exchanged))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(programs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    look()
    planned: dict[str, float] = {}
    for one in record.collectives:
        planned[one.kind] = planned.get(one.kind, 0) + one.nbytes
    assert exchanged == [planned] * len(programs)
    parts = zip(*(found[rank] for rank in range(len(programs))), record.outputs, strict=True)
    return [own[0] if axis is None else np.concatenate(own, axis) for *own, axis in parts]


def check(body: Body, shape: tuple[int, ...], devices: int = 2, **options: Any) -> tvm.IRModule:
    """The first program, of those that together give what the whole does."""
    mod = module(body, *shape)
    programs = partitioned(mod, devices, **{"shard": "tensor", **options})
    assert not record_of(programs[0]).problem
    array = NUMBERS.standard_normal(shape, dtype=np.float32)
    for ours, whole in zip(
        run_together(programs, array), outputs_of(compiled(mod), array), strict=True
    ):
        np.testing.assert_allclose(ours, whole, rtol=1e-4, atol=1e-5)
    return programs[0]


def mlp(emit: Any, x: relax.Expr) -> relax.Expr:
    hidden = emit(op.nn.relu(emit(op.add(emit(op.matmul(x, weights(8, 16))), weights(16)))))
    return emit(op.add(emit(op.matmul(hidden, weights(16, 8))), weights(8)))


def heads(emit: Any, x: relax.Expr, width: int, count: int) -> relax.Expr:
    product = emit(op.matmul(x, weights(16, width)))
    split = emit(op.reshape(product, [1, 6, count, width // count]))
    return emit(op.permute_dims(split, [0, 2, 1, 3]))


def attention(emit: Any, x: relax.Expr) -> relax.Expr:
    """Four heads of queries with two of keys and values."""
    queries = heads(emit, x, 16, 4)
    keys, values = (
        emit(op.reshape(emit(op.broadcast_to(emit(op.expand_dims(one, 2)), repeated)), whole))
        for one in (heads(emit, x, 8, 2), heads(emit, x, 8, 2))
        for repeated, whole in [([1, 2, 2, 6, 4], [1, 4, 6, 4])]
    )
    scores = emit(op.matmul(queries, emit(op.permute_dims(keys, [0, 1, 3, 2]))))
    mixed = emit(op.matmul(emit(op.nn.softmax(scores)), values))
    joined = emit(op.reshape(emit(op.permute_dims(mixed, [0, 2, 1, 3])), [1, 6, 16]))
    return emit(op.add(x, emit(op.matmul(joined, weights(16, 16)))))


def residual_block(emit: Any, x: relax.Expr) -> relax.Expr:
    one = emit(op.nn.relu(emit(op.nn.conv2d(x, weights(8, 4, 3, 3), padding=1))))
    deep = emit(op.nn.conv2d(one, weights(8, 1, 3, 3), padding=1, groups=8))
    two = emit(op.nn.conv2d(deep, weights(4, 8, 1, 1)))
    return emit(op.nn.max_pool2d(emit(op.nn.relu(emit(op.add(two, x)))), [2, 2]))


def parallel_branches(emit: Any, x: relax.Expr) -> relax.Expr:
    """Two partial sums that are added."""
    parts = [
        emit(op.matmul(emit(op.exp(emit(op.matmul(x, weights(8, 16))))), weights(16, 8)))
        for _ in range(2)
    ]
    return emit(op.add(emit(op.add(*parts)), x))


def sum_beside_slice(emit: Any, x: relax.Expr) -> relax.Expr:
    total = emit(op.matmul(emit(op.exp(emit(op.matmul(x, weights(8, 16))))), weights(16, 4)))
    return emit(op.multiply(emit(op.matmul(x, weights(8, 4))), total))


def normalized(emit: Any, x: relax.Expr) -> relax.Expr:
    product = emit(op.matmul(x, weights(8, 8)))
    return emit(op.nn.layer_norm(product, weights(8), weights(8), axes=[-1]))


def moved(emit: Any, x: relax.Expr) -> relax.Expr:
    """Concatenation, slices, means, maxima and padding beside the split axis, and along it."""
    product = emit(op.matmul(x, weights(8, 8)))
    joined = emit(op.concat([product, product], axis=0))
    cut = emit(op.strided_slice(joined, [0], [1], [3]))
    padded = emit(op.nn.pad(cut, [0, 1, 0, 0]))
    row = emit(op.max(padded, axis=[1], keepdims=True))
    return emit(
        op.subtract(padded, emit(op.add(row, emit(op.mean(padded, axis=[1], keepdims=True)))))
    )


def fields(emit: Any, x: relax.Expr) -> relax.Expr:
    product = emit(op.matmul(x, weights(8, 8)))
    both = emit(op.split(product, 2, axis=0))
    first, second = (emit(relax.TupleGetItem(both, n)) for n in range(2))
    return relax.Tuple([emit(op.add(first, second)), product])


def last_product(emit: Any, x: relax.Expr) -> relax.Expr:
    """What leaves the block is the product itself."""
    return op.matmul(emit(op.exp(emit(op.matmul(x, weights(8, 16))))), weights(16, 8))


def pooled(emit: Any, x: relax.Expr) -> relax.Expr:
    """Channels last: the second axis is one of the image."""
    return emit(op.nn.max_pool2d(emit(op.nn.relu(x)), [3, 3], padding=[1, 1, 1, 1], layout="NHWC"))


def squeezed(emit: Any, x: relax.Expr) -> relax.Expr:
    """Each device has one row of the axis that is split, and another axis of one."""
    return emit(op.squeeze(x))


def rounded(emit: Any, x: relax.Expr) -> relax.Expr:
    """Integers whose sum is divided."""
    total = emit(op.sum(emit(op.astype(emit(op.multiply(x, relax.const(9.0))), "int64")), axis=[0]))
    halves = emit(op.divide(total, relax.const(2, "int64")))
    return emit(op.astype(halves, "float32"))


def centred(emit: Any, x: relax.Expr) -> relax.Expr:
    """Statistics that are known, and nothing else of the batch."""
    made = emit(op.nn.conv2d(x, weights(8, 4, 3, 3), padding=1))
    numbers = [weights(8), weights(8), weights(8), relax.const(np.arange(1, 9, dtype=np.float32))]
    return emit(op.nn.relu(emit(op.nn.batch_norm(made, *numbers, axis=1, training=False)[0])))


@pytest.mark.extended
def test_rows_follow_columns() -> None:
    program = check(mlp, (4, 8))
    assert kinds(program) == ["all-reduce"]
    assert record_of(program).outputs == [None]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("body", "shape", "expected"),
    one_in(
        2,
        [
            (attention, (1, 6, 16), ["all-reduce"]),
            (residual_block, (1, 4, 4, 4), ["all-reduce"]),
            (parallel_branches, (4, 8), ["all-reduce"]),
            (sum_beside_slice, (4, 8), ["reduce-scatter"]),
            (normalized, (2, 3, 8), ["all-gather"]),
            (moved, (2, 8), ["all-reduce", "all-reduce"]),
            (fields, (4, 8), []),
            (last_product, (4, 8), ["all-reduce"]),
            (centred, (1, 4, 4, 4), []),
        ],
    ),
)
def test_splits_are_followed(body: Body, shape: tuple[int, ...], expected: list[str]) -> None:
    assert kinds(check(body, shape)) == expected


@pytest.mark.extended
@pytest.mark.parametrize(
    ("body", "shape", "expected"),
    [
        (pooled, (1, 4, 4, 2), ["all-gather"]),
        (squeezed, (2, 1, 8), []),
        (rounded, (2, 8), ["all-reduce"]),
        (centred, (2, 4, 4, 4), []),
    ],
)
def test_splits_of_inputs_are_followed(body: Body, shape: tuple[int, ...], expected: list) -> None:
    axis = 1 if body is pooled else 0
    assert kinds(check(body, shape, patterns=(("x", axis),))) == expected


def test_a_mean_in_half_precision_is_no_sum_of_half_precision() -> None:
    """The sum of a row is about 120,000, and the largest number of the type 65,504."""

    def mean(emit: Any, x: relax.Expr) -> relax.Expr:
        narrow = emit(op.mean(emit(op.astype(x, "float16")), axis=[-1]))
        return emit(op.astype(narrow, "float32"))

    programs = partitioned(module(mean, 2, 40_000), patterns=(("x", 1),), shard="tensor")
    assert kinds(programs[0]) == ["all-reduce"]
    array = 3 + NUMBERS.random((2, 40_000), dtype=np.float32)
    (found,) = run_together([legalize_ops()(one) for one in programs], array)
    np.testing.assert_allclose(found, array.mean(axis=1), rtol=2e-3)


@pytest.mark.extended
def test_a_cast_to_a_shape_reads_the_whole() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(op.matmul(x, weights(8, 8)))
            cast = builder.match_cast(product, product.ty)
            result = builder.emit_output(op.nn.relu(cast))
        builder.emit_func_output(result)
    mod = builder.get()
    programs = partitioned(mod, shard="tensor")
    assert kinds(programs[0]) == ["all-gather"]
    array = NUMBERS.standard_normal((4, 8), dtype=np.float32)
    (found,), (whole,) = run_together(programs, array), outputs_of(compiled(mod), array)
    np.testing.assert_allclose(found, whole, rtol=1e-4, atol=1e-5)


def test_fields_of_a_result_are_put_together() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            both = [builder.emit_output(made) for made in (op.exp(x), op.negative(x))]
        builder.emit_func_output(relax.Tuple(both))
    programs = partitioned(builder.get(), shard="data")
    assert record_of(programs[0]).outputs == [0, 0]
    array = NUMBERS.standard_normal((4, 8), dtype=np.float32)
    found = run_together(programs, array)
    np.testing.assert_allclose(found, [np.exp(array), -array], rtol=1e-5)


def test_equal_slices_of_one_device_are_not_merged() -> None:
    first = NUMBERS.standard_normal((8, 8), dtype=np.float32)
    second = np.concatenate([first[:4] + 1, first[4:]])

    def alike(emit: Any, x: relax.Expr) -> relax.Expr:
        hidden = emit(op.matmul(x, weights(8, 8)))
        one, other = (emit(op.matmul(hidden, relax.const(w))) for w in (first, second))
        return emit(op.multiply(emit(op.exp(one)), emit(op.tanh(other))))

    programs = partitioned(module(alike, 4, 8), shard="tensor")
    assert kinds(programs[1]) == ["all-reduce", "all-reduce"]
    assert eliminate_common_subexpr()(programs[1]).same_as(programs[1])


@pytest.mark.extended
def test_four_devices() -> None:
    assert kinds(check(mlp, (4, 8), devices=4)) == ["all-reduce"]
    assert kinds(check(sum_beside_slice, (4, 8), devices=4)) == ["reduce-scatter"]


def rows_of_steps(emit: Any, x: relax.Expr) -> relax.Expr:
    """(batch, steps * 2) as rows of (steps, batch), times weights, and scaled."""
    batch, width = (int(size) for size in x.ty.shape.values)
    steps = emit(op.permute_dims(emit(op.reshape(x, [batch, width // 2, 2])), [1, 0, 2]))
    rows = emit(op.reshape(steps, [batch * width // 2, 2]))
    return emit(op.multiply(emit(op.matmul(rows, weights(2, 3))), relax.const(2.0)))


def recurrence(emit: Any, x: relax.Expr) -> relax.Expr:
    """Two steps behind a state of zeros, whose inputs are multiplied at once."""
    batch, width = (int(size) for size in x.ty.shape.values)
    apart = emit(op.reshape(rows_of_steps(emit, x), [width // 2, batch, 3]))
    steps, own = emit(op.split(apart, width // 2, 0)), weights(3, 3)
    state = emit(op.broadcast_to(relax.const(np.zeros((1, 3), np.float32)), [batch, 3]))
    for number in range(2):
        step = emit(op.squeeze(emit(relax.TupleGetItem(steps, number)), [0]))
        state = emit(op.tanh(emit(op.add(step, emit(op.matmul(state, own))))))
    return state


@pytest.mark.extended
@pytest.mark.parametrize("body", [mlp, parallel_branches, recurrence])
def test_a_batch_is_split_without_any_exchange(body: Body) -> None:
    program = check(body, (4, 8), shard="data")
    record = record_of(program)
    assert (record.inputs, record.outputs, record.collectives) == ([0], [0], [])
    assert record.alike


def test_what_mixes_the_items_of_a_batch_is_gathered() -> None:
    def mixing(emit: Any, x: relax.Expr) -> relax.Expr:
        return emit(op.nn.softmax(emit(op.matmul(x, weights(8, 8))), axis=0))

    assert kinds(check(mixing, (4, 8), shard="data")) == ["all-gather"]


def test_rows_in_blocks_are_gathered_in_order() -> None:
    assert kinds(check(rows_of_steps, (4, 8), shard="data")) == ["all-gather"]

    def beside_rows_of_its_own(emit: Any, x: relax.Expr) -> relax.Expr:
        rows = emit(op.multiply(rows_of_steps(emit, x), weights(16, 3)))
        return emit(op.sum(rows, axis=0))

    program = check(beside_rows_of_its_own, (4, 8), shard="data")
    assert kinds(program) == ["all-reduce"]
    assert not record_of(program).alike


def test_patterns_name_nodes_and_inputs() -> None:
    mod = module(mlp, 4, 8)
    products = [one.var for one in bindings_of(mod["main"])]
    mod = write_origins(mod, {products[0]: ["/fc1/MatMul"]})
    (named, _) = partitioned(mod, patterns=(("*/fc1/*", 1),))
    assert kinds(named) == ["all-reduce"]
    (rows, _) = partitioned(mod, patterns=(("*/fc1/*", 0),))
    assert kinds(rows) == ["all-reduce"]
    mod = write_origins(mod, {products[0]: ["/fc1/MatMul"], products[3]: ["/fc2/MatMul"]})
    (pair, _) = partitioned(mod, patterns=(("*/fc1/*", 1), ("*/fc2/*", 0)))
    assert kinds(pair) == ["all-reduce"]
    (both, _) = partitioned(mod, patterns=(("*/fc1/*", 1), ("x", 0)))
    assert not record_of(both).problem
    assert kinds(both)[0] == "all-gather"
    assert kinds(check(mlp, (4, 8), patterns=(("x", 0),))) == []


@pytest.mark.parametrize(
    ("options", "shape", "line"),
    [
        ({"shard": "data"}, (3, 8), "the batch is of 3, no multiple of 2 devices"),
        ({"shard": "tensor", "devices": 7}, (4, 8), "no axis can be split in 7 equal parts"),
        ({"patterns": (("nothing", 0),)}, (4, 8), "is called 'nothing'"),
        ({"patterns": (("x", 5),)}, (4, 8), "have no axis 5"),
    ],
)
def test_what_cannot_be_split_is_said(options: dict, shape: tuple, line: str) -> None:
    (program, *_) = partitioned(module(mlp, *shape), **options)
    assert line in record_of(program).problem


def test_an_open_batch_needs_no_other_program() -> None:
    mod = module(mlp, "batch", 8)
    record = record_of(partitioned(mod, shard="data")[0])
    assert (record.open_batch, record.inputs, record.outputs) == ("batch", [0], [0])


def test_auto_takes_what_takes_less_modelled_time() -> None:
    large = module(mlp, 64, 8)
    assert record_of(partitioned(large)[0]).strategy == "data"
    assert record_of(partitioned(module(mlp, 1, 8))[0]).strategy == "none"


def test_the_log_says_what_is_exchanged() -> None:
    with recording() as decisions:
        partitioned(module(mlp, 4, 8), shard="tensor")
    assert any("all-reduce of 128 bytes" in one.reason for one in decisions)
    assert SpmdPartition()(mod := module(mlp, 4, 8)).same_as(mod)
