"""The fallback: numbers of kernels of all kinds, what is dealt to threads, what is refused."""

import pytest
from cuda_kernels import assert_numbers, cuda_source, scheduled
from kernel_cases import CASES
from lowering import f32, kernels_of, loops_of
from machines import GPU, MACHINE
from tvm import relax, tirx
from tvm.script import tirx as T
from tvm_ffi import structural_map

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.generic import Generic, accesses_of, independent
from tvm_ext.tir_schedules.cuda.launch import is_bound

TEMPLATE = Generic()
KINDS = (
    *("conv nchw grouped", "conv transpose", "matmul half", "matmul dot", "max pool", "sum first"),
    *("argmax last", "softmax middle", "layer norm", "concat inner odd", "transpose", "take inner"),
    *("pad reflect", "resize linear", "scalar", "to bool", "sum of nothing", "matmul of nothing"),
)


@T.prim_func(s_tir=True)
def scans(a: T.Buffer((5, 16), "float32"), b: T.Buffer((5, 16), "float32")):
    for i in range(5):
        b[i, 0] = a[i, 0]
        for j in range(15):
            b[i, j + 1] = b[i, j] + a[i, j + 1]


@T.prim_func(s_tir=True)
def scan_outside(a: T.Buffer((16, 40), "float32"), b: T.Buffer((17, 40), "float32")):
    for j in range(16):
        for i in range(40):
            b[j + 1, i] = b[j, i] * T.float32(0.5) + a[j, i]


@T.prim_func(s_tir=True)
def one_after_the_other(a: T.Buffer((40, 40), "float32"), b: T.Buffer((40,), "float32")):
    state = T.alloc_buffer((40,), "float32")
    for i in range(40):
        state[i] = T.float32(1)
    for t in range(7):
        for i in range(40):
            b[i] = a[t, i]
            for k in range(40):
                b[i] = b[i] + a[i, k] * state[k]
        for i in range(40):
            state[i] = T.tanh(b[i])


@T.prim_func(s_tir=True)
def counted(
    a: T.Buffer((50,), "float32"), b: T.Buffer((50,), "float32"), n: T.Buffer((1,), "int64")
):
    found = T.alloc_buffer((1,), "int64", scope="local")
    found[0] = T.int64(0)
    for i in range(50):
        b[i] = T.float32(0)
    for i in range(50):
        if a[i] > T.float32(0):
            b[found[0]] = a[i]
            found[0] = found[0] + T.int64(1)
    n[0] = found[0]


WRITTEN = {
    "scans": scans,
    "scan outside": scan_outside,
    "one after the other": one_after_the_other,
    "counted": counted,
}


def test_numbers() -> None:
    plain = dict(WRITTEN)
    for name in KINDS:
        case = CASES[name]
        for kernel, func in kernels_of(case.expression, *case.inputs).items():
            plain[f"{name}: {kernel}"] = func
    found = {name: scheduled(TEMPLATE, func) for name, func in plain.items()}
    assert all(is_bound(func) for func in found.values())
    assert_numbers(plain, found)


def launches(func: tirx.PrimFunc) -> list[int | None]:
    """Threads of each launch."""
    loops = loops_of(scheduled(TEMPLATE, func))
    return [loop.extent for loop in loops if loop.kind == "thread" and "thread" in loop.path]


def test_independent_loops_are_dealt_to_threads() -> None:
    assert set(launches(scans)) == {5}
    assert set(launches(scan_outside)) == {40}, "the scan goes inside"
    assert 1 not in launches(one_after_the_other)
    assert launches(counted) == [1, 50, 1]


def test_parallel_loops_are_dealt_to_threads() -> None:
    @T.prim_func(s_tir=True)
    def scatter(
        a: T.Buffer((40, 5), "float32"),
        i: T.Buffer((40,), "int64"),
        b: T.Buffer((60, 5), "float32"),
    ):
        for j in T.parallel(40):
            for k in T.parallel(5):
                b[i[j], k] = a[j, k]

    assert launches(scatter) == [128]
    plain = scatter.with_body(_in_series(scatter.body))
    assert launches(plain) == [5], "nobody says that no two indices are the same"


def _in_series(body: tirx.Stmt) -> tirx.Stmt:
    def serial(loop: tirx.For) -> tirx.For:
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return structural_map(body, (tirx.For, serial))


def test_vectors_of_a_cpu_are_taken_apart() -> None:
    @T.prim_func(s_tir=True)
    def wide(a: T.Buffer((4, 16), "float32"), b: T.Buffer((4, 16), "float32")):
        for i in T.parallel(4):
            for j in T.vectorized(16):
                b[i, j] = a[i, j]

    found = scheduled(TEMPLATE, wide)
    assert "vectorized" not in {loop.kind for loop in loops_of(found)}
    cuda_source(found)


@pytest.mark.parametrize(
    ("index", "apart"),
    [
        (lambda i, j: [i, j], True),
        (lambda i, j: [i * 4 + j, 0], True),
        (lambda i, j: [i * 3 + j, 0], False),
        (lambda i, j: [j, i - i], False),
        (lambda i, j: [5 - i, j], True),
    ],
)
def test_windows(index: object, apart: bool) -> None:
    i, j = (tirx.Var(name, "int64") for name in "ij")
    out = tirx.decl_buffer((40, 40), "float32", "out")
    store = tirx.BufferStore(out, tirx.const(1.0, "float32"), index(i, j))  # type: ignore[operator]
    zero, four = tirx.const(0, "int64"), tirx.const(4, "int64")
    body = tirx.For(j, zero, four, tirx.ForKind.SERIAL, store)
    assert independent(i, accesses_of(body)) is apart


def test_refusals() -> None:
    @T.prim_func(s_tir=True)
    def threads(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
        for t in T.thread_binding(64, thread="threadIdx.x"):
            b[t] = a[t]

    found = apply_template(TEMPLATE, threads, GPU)
    assert isinstance(found, NotApplicable)
    assert "binds some of its loops" in found.reason
    (func,) = kernels_of(relax.op.exp, f32(4)).values()
    assert isinstance(apply_template(TEMPLATE, func, MACHINE), NotApplicable)
