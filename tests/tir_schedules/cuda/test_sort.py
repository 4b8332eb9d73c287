"""Sorts on a GPU: order, ties and NaN in every form of launches, in the emulator; the models."""

from typing import Any

import numpy as np
from cuda_emulation import set_seed
from cuda_kernels import (
    SERIAL_TARGET,
    in_series,
    needs_nvcc,
    resources,
    scheduled,
    shared_bytes,
    whole_source,
)
from emulated_kernels import emulated
from lowering import f32, kernel_of
from machines import GPU
from tvm import IRModule, relax, runtime, te, tirx, topi
from unoptimised import linked

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.sort import Sort
from tvm_ext.tir_schedules.cuda.sort_decision import Words, decide_sort, sort_of
from tvm_ext.tir_schedules.template import FixedDecisions

TEMPLATE = Sort()


def top(*shape: int, k: int, axis: int = -1, best: str = "largest", dtype: str = "float32") -> Any:
    """TopK as it comes to the template, and what it sorts."""
    x = te.placeholder(shape, dtype, name="x")
    results = topi.topk(x, k, axis, "both", best == "smallest", "int64")
    return te.create_prim_func([x, *results]), shape, axis, best == "smallest", dtype, k


def places(*shape: int, axis: int = -1, best: str = "smallest", dtype: str = "float32") -> Any:
    """ArgSort likewise."""
    x = te.placeholder(shape, dtype, name="x")
    result = topi.argsort(x, axis=axis, is_ascend=best == "smallest", dtype="int32")
    kernel = te.create_prim_func([x, result])
    return kernel, shape, axis, best == "smallest", dtype, shape[axis]


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Few different ones, the extremes of the type, and all that is odd about floats."""
    generator = np.random.default_rng(0)
    if dtype.startswith("int"):
        found = generator.integers(-50, 50, shape).astype(dtype)
        found.flat[0], found.flat[-1] = np.iinfo(dtype).min, np.iinfo(dtype).max
        return found
    found = generator.integers(-40, 40, shape).astype(dtype)
    for place, value in enumerate((-0.0, np.inf, -np.inf, np.nan)):
        found.reshape(-1)[place :: 17 + 12 * place] = value
    return found


def expected(x: np.ndarray, axis: int, ascending: bool, k: int) -> np.ndarray:
    """Places of the best: of equals the first, NaN last."""
    keys = np.where(np.isnan(x), np.inf, x) if x.dtype.kind == "f" else x.astype(object)
    keys = (
        keys if ascending else np.where(np.isnan(x), np.inf, -x) if x.dtype.kind == "f" else -keys
    )
    # By the key, and where it is infinite by whether it is NaN; both stable.
    order = np.argsort(x != x, axis=axis, kind="stable")
    sorted_keys = np.take_along_axis(keys, order, axis)
    order = np.take_along_axis(order, np.argsort(sorted_keys, axis=axis, kind="stable"), axis)
    return np.take(order, np.arange(k), axis=axis)


SORTS: dict[str, tuple[Any, dict[str, int]]] = {
    "experts": (top(700, 16, k=4), {}),
    "several rows a block": (top(37, 20, k=3), {"tiles_of_block": 4}),
    "one of one": (top(3, 1, k=1), {}),
    "best": (top(3, 300, k=1), {}),
    "three launches": (top(1, 6000, k=200), {"tile": 512}),
    "half of a tile": (top(1, 2000, k=256, best="smallest"), {"tile": 512}),
    "merged": (top(2, 1300, k=600), {"tile": 512}),
    "inner axis": (top(2, 1200, 3, k=6, axis=1), {"tile": 512}),
    "places": (places(2, 2700, best="largest"), {"tile": 512}),
    "places of an inner axis": (places(2, 1100, 3, axis=1), {"tile": 512}),
    "float64": (top(2, 1300, k=30, dtype="float64"), {"tile": 512}),
    "int32": (top(2, 1300, k=30, dtype="int32"), {"tile": 512}),
    "int64": (places(2, 1300, dtype="int64", best="largest"), {"tile": 512}),
}


def test_order() -> None:
    found = {
        name: scheduled(TEMPLATE, case[0], decisions=FixedDecisions(decided))
        for name, (case, decided) in SORTS.items()
    }
    threads = emulated(found)
    symbols = {name: f"k{number}" for number, name in enumerate(found)}
    in_turn = {s: in_series(found[n]).with_attr("global_symbol", s) for n, s in symbols.items()}
    library = linked(tirx.build(IRModule(in_turn), target=SERIAL_TARGET))
    set_seed(1)
    for name, ((kernel, shape, axis, ascending, dtype, k), _) in SORTS.items():
        x = numbers(shape, dtype)
        wanted = expected(x, axis, ascending, k)
        indices = np.zeros(wanted.shape, "int64" if len(kernel.params) == 3 else "int32")
        values = [wanted.astype(dtype)] if len(kernel.params) == 3 else []
        for run in (library[symbols[name]], threads[name]):
            tensors = [runtime.tensor(array) for array in (x, *values, indices)]
            run(*tensors)
            np.testing.assert_array_equal(tensors[-1].numpy(), wanted, err_msg=name)
            if values:
                best = np.take_along_axis(x, wanted, axis)
                np.testing.assert_array_equal(tensors[1].numpy(), best, err_msg=name)


def test_launches_of_large_sorts() -> None:
    def launches(case: Any) -> int:
        problem = sort_of(case[0])
        plan = decide_sort(problem, Words(problem.dtype, problem.ascending), GPU)
        assert all(8 * t.rows * t.tile <= GPU.shared_memory_bytes for t in plan.tilings)
        return len(plan.tilings) + len(plan.merges)

    assert launches(top(1, 1_000_000, k=100)) == 4
    assert launches(top(1, 1_000_000, k=1024)) <= 6
    assert launches(top(64, 8400, k=300)) <= 3
    assert launches(places(80, 8400)) <= 4


@needs_nvcc
def test_no_spills() -> None:
    source = whole_source(scheduled(TEMPLATE, top(1, 7000, k=1024)[0]))
    assert 0 < shared_bytes(source) <= 2 * GPU.shared_memory_bytes
    assert all(found.spilled == 0 for found in resources(source, "sm_90a"))


def test_refusals() -> None:
    other = apply_template(TEMPLATE, kernel_of(relax.op.exp, f32(4, 9)), GPU)
    assert isinstance(other, NotApplicable)
    assert "sorts nothing" in other.reason
    half = apply_template(TEMPLATE, places(3, 40, dtype="float16")[0], GPU)
    assert isinstance(half, NotApplicable)
    assert "not written for" in half.reason
