"""CoalesceAccesses: which loops it turns, which it must not, and that the numbers stay."""

import numpy as np
import pytest
import tvm
from small_models import model, node, value
from tvm import tirx
from unoptimised import built

import tvm_ext
from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.passes.coalesce_accesses import CoalesceAccesses
from tvm_ext.passes.pipeline import build_pipeline
from tvm_ext.tir_schedules.analysis.buffer_access import nodes as nodes_of
from tvm_ext.tir_schedules.cpu.outer_vectors import coalesced

MACHINE = resolve_target("avx512").with_threads(2)


def written(body: str, shape: tuple[int, ...]) -> tirx.PrimFunc:
    """A kernel of x and y of this shape that is one block of loops."""
    lines = "\n".join(f"        {line}" for line in body.strip("\n").splitlines())
    source = (
        "@T.prim_func(s_tir=True)\n"
        f"def kernel(x: T.Buffer({shape}, 'float32'), y: T.Buffer({shape}, 'float32')):\n"
        "    with T.sblock('root'):\n"
        "        T.reads()\n"
        "        T.writes()\n"
        f"{lines}\n"
    )
    return tvm.script.from_source(source)


SCAN = """
for b in range({before}):
    for c in range({behind}):
        total = T.alloc_buffer((1,), "float32")
        total[0] = T.float32(0)
        for r in range({length}):
            total[0] = total[0] + x[b, r, c]
            y[b, r, c] = total[0]
"""


def scan(before: int, length: int, behind: int) -> tirx.PrimFunc:
    shape = (before, length, behind)
    return written(SCAN.format(before=before, length=length, behind=behind), shape)


def run(func: tirx.PrimFunc, x: np.ndarray) -> np.ndarray:
    y = tvm.runtime.tensor(np.full_like(x, np.nan))
    built({"main": func})["main"](tvm.runtime.tensor(x), y)
    return y.numpy()


@pytest.mark.extended
@pytest.mark.parametrize(
    ("before", "length", "behind"), [(1, 40, 64), (2, 33, 100), (3, 20, 213), (1, 50, 1024)]
)
def test_a_scan_down_columns_gets_vectors_along_rows(before, length, behind):
    func = scan(before, length, behind)
    found = coalesced(func, MACHINE)
    assert found.loop == "c"
    assert found.lines < found.lines_before / 2
    loops = nodes_of(found.func.body, tirx.For)
    assert any(loop.kind == tirx.ForKind.VECTORIZED for loop in loops)
    x = np.random.default_rng(0).normal(size=(before, length, behind)).astype("float32")
    np.testing.assert_array_equal(run(found.func, x), run(func, x))


def test_large_kernels_run_on_threads():
    loops = nodes_of(coalesced(scan(1, 512, 4096), MACHINE).func.body, tirx.For)
    assert loops[0].kind == tirx.ForKind.PARALLEL
    small = nodes_of(coalesced(scan(1, 8, 64), MACHINE).func.body, tirx.For)
    assert all(loop.kind != tirx.ForKind.PARALLEL for loop in small)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("before", "length", "behind"), [(2, 33, 300), (1, 20, 1024), (3, 9, 213), (1, 7, 130)]
)
def test_tensors_beyond_l2_are_walked_in_rows_that_l1_holds(before, length, behind):
    machine = MACHINE.model_copy(update={"l2_bytes": 4096})
    func = scan(before, length, behind)
    found = coalesced(func, machine).func
    kept = [int(one.buffer.shape[1]) for one in nodes_of(found.body, tirx.AllocBuffer)]
    assert max(kept) == behind // machine.cores // 64 * 64
    in_registers = nodes_of(coalesced(func, MACHINE).func.body, tirx.AllocBuffer)
    assert all(int(one.buffer.shape[1]) <= 64 for one in in_registers)
    x = np.random.default_rng(0).normal(size=(before, length, behind)).astype("float32")
    np.testing.assert_array_equal(run(found, x), run(func, x))


def test_rows_are_no_longer_than_a_share_of_l1():
    machine = MACHINE.model_copy(update={"l2_bytes": 4096, "l1d_bytes": 4096}).with_threads(1)
    allocated = nodes_of(coalesced(scan(1, 5, 2048), machine).func.body, tirx.AllocBuffer)
    assert [int(one.buffer.shape[1]) for one in allocated] == [256]


REFUSED = {
    "rows are contiguous already": (
        """
for b in range(64):
    total = T.alloc_buffer((1,), "float32")
    total[0] = T.float32(0)
    for c in range(64):
        total[0] = total[0] + x[b, c]
        y[b, c] = total[0]
""",
        "no gain",
    ),
    # Of these two the rows are free, and vectors along rows ask for no fewer lines.
    "each column reads the one before": (
        """
for c in range(63):
    for r in range(64):
        y[r, c + 1] = y[r, c] + x[r, c]
""",
        "no gain",
    ),
    "columns meet in one row": (
        """
for c in range(64):
    for r in range(64):
        y[r, 0] = y[r, 0] + x[r, c]
""",
        "no gain",
    ),
    "how far a column goes depends on it": (
        """
for c in range(64):
    for r in range(c + 1):
        y[r, c] = x[r, c]
""",
        "no loop is known to be free",
    ),
    "a condition differs by column": (
        """
for c in range(64):
    for r in range(64):
        if x[r, c] > T.float32(0):
            y[r, c] = x[r, c]
""",
        "no loop is known to be free",
    ),
    "one loop that is contiguous": (
        """
for c in range(64):
    y[0, c] = x[0, c]
""",
        "no gain",
    ),
    "several nests": (
        """
for c in range(64):
    y[0, c] = x[0, c]
for c in range(64):
    y[1, c] = x[0, c]
""",
        "no loop around all others",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_loops_that_stay(name):
    body, reason = REFUSED[name]
    with pytest.raises(NotApplicable, match=reason):
        coalesced(written(body, (64, 64)), MACHINE)


def cumulative(axis: int, **attributes: int):
    nodes = [node("CumSum", ["x", "axis"], ["y"], name="sums", **attributes)]
    shape = [2, 30, 70]
    return model(nodes, [value("x", shape)], [value("y", shape)], axis=np.array(axis, "int64"))


@pytest.mark.extended
@pytest.mark.parametrize("attributes", [{}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}])
def test_a_model_with_and_without_it(attributes):
    x = {"x": np.random.default_rng(1).normal(size=(2, 30, 70)).astype("float32")}
    compiled = tvm_ext.compile(cumulative(1, **attributes))
    plain = tvm_ext.compile(cumulative(1, **attributes), disabled_passes=["CoalesceAccesses"])
    np.testing.assert_array_equal(compiled.run(x)["y"], plain.run(x)["y"])
    (record,) = [one for one in compiled.report.passes if one.name == "CoalesceAccesses"]
    ((where, reason),) = [(one.where, one.reason) for one in record.decisions]
    assert where == "sums"
    assert "cache lines instead of" in reason


def test_the_pass_stands_ahead_of_vector_math_and_only_at_o3():
    names = [step.entry.name for step in build_pipeline("O3").tile]
    assert names[:2] == ["CoalesceAccesses", "VectorMath"]
    assert "CoalesceAccesses" not in [step.entry.name for step in build_pipeline("O2").tile]


def test_a_gpu_is_left_alone():
    mod = tvm.IRModule({"main": scan(1, 40, 64).with_attr("global_symbol", "main")})
    with compiling_for(resolve_target("nvidia-h100")):
        assert CoalesceAccesses()(mod).same_as(mod)


def test_perfect_nests_are_turned_as_well():
    body = """
for c in range(64):
    for r in range(64):
        y[r, c] = x[r, c] * T.float32(2)
"""
    func = written(body, (64, 64))
    x = np.random.default_rng(2).normal(size=(64, 64)).astype("float32")
    np.testing.assert_array_equal(run(coalesced(func, MACHINE).func, x), 2 * x)
