"""Kernels of every family in MLIR: their numbers, and the operations that they become."""

import kernel_cases
import pytest
from both_generators import agree, compared
from kernel_cases import CONVOLUTIONS, MATMULS, MOVES, POINTWISE, REDUCTIONS
from lowering import f32, kernel_of, kernels_of
from thoroughness import one_in, some_of
from torch_mlir import ir
from tvm import relax, te, tirx
from tvm.relax.op import nn
from tvm.script import tirx as T

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.mlir.from_tensorir import ON_MEMREFS, ON_TENSORS, convert_kernel
from tvm_ext.mlir.lowering import lower_to

FAMILIES = {
    "convolutions": CONVOLUTIONS,
    "matmuls": MATMULS,
    "reductions": REDUCTIONS,
    "moves": MOVES,
    "pointwise": POINTWISE,
}


def _kernels(cases):
    found = {}
    for name, case in cases:
        for kernel, func in kernels_of(case.expression, *case.inputs).items():
            found[f"{name}: {kernel}"] = func
    return found


@pytest.mark.extended
@pytest.mark.parametrize("family", one_in(3, FAMILIES))
def test_every_family_computes_the_same(family):
    kernels = _kernels(some_of(FAMILIES[family].items()))
    agree(compared(kernels))


@pytest.mark.extended
def test_most_kernels_are_linalg_on_tensors():
    kernels = _kernels(some_of(kernel_cases.CASES.items()))
    forms = [convert_kernel(func, "kernel").form for func in kernels.values()]
    assert forms.count(ON_TENSORS) >= 0.9 * len(forms)


def _text(func, stage):
    converted = convert_kernel(func, "kernel")
    lower_to(converted.module, stage)
    return str(converted.module)


def test_named_operations():
    dense = kernel_of(lambda a, w: relax.op.matmul(a, w), f32(7, 13), f32(13, 24))
    text = _text(dense, "linalg")
    assert "linalg.matmul ins(" in text
    assert "linalg.fill ins(" in text
    turned = kernel_of(relax.op.permute_dims, f32(13, 40))
    assert "linalg.transpose ins(" in _text(turned, "linalg")


def test_elementwise_operations_become_one():
    chain = kernel_of(lambda x: nn.relu(relax.op.exp(relax.op.add(x, x))), f32(7, 40))
    assert _text(chain, "linalg").count(": tensor<7x40xf32>) outs(") >= 2
    text = _text(chain, "bufferized")
    assert text.count("linalg.generic") == 1
    assert "memref.alloc" not in text


def test_a_window_has_an_operand_of_its_own():
    pool = kernel_of(lambda x: nn.max_pool2d(x, (3, 3), (2, 2)), f32(1, 5, 13, 13))
    assert "tensor.empty() : tensor<3x3xi8>" in _text(pool, "linalg")


def test_the_llvm_stage_has_no_other_dialect():
    chain = kernel_of(lambda x: nn.softmax(x), f32(5, 24))
    text = _text(chain, "llvm")
    for dialect in ("linalg.", "memref.", "arith.", "scf.", "cf.", "math."):
        assert f" {dialect}" not in text


def test_unsigned_numbers_stay_unsigned():
    """MLIR's named operations would take the first operand for signed numbers."""

    @T.prim_func(private=True, s_tir=True)
    def product(
        a: T.Buffer((5, 7), "uint8"), b: T.Buffer((7, 9), "int8"), c: T.Buffer((5, 9), "int32")
    ):
        for i, j, k in T.grid(5, 9, 7):
            with T.sblock("product"):
                x, y, z = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    c[x, y] = 0
                c[x, y] = c[x, y] + T.Cast("int32", a[x, z]) * T.Cast("int32", b[z, y])

    found = compared({"product": product})
    agree(found)
    assert found["product"].form == ON_TENSORS


INSIDE = {
    "exp": tirx.exp,
    "negative": lambda x: -x,
    "rounded": lambda x: x.astype("float16").astype("float32"),
}


@pytest.mark.parametrize("operator", INSIDE)
def test_what_is_computed_within_a_product_stays_there(operator):
    """Fusion puts it there; MLIR's named operations have no place for it."""
    a, w = te.placeholder((7, 13)), te.placeholder((13, 24))
    inside, k = te.compute((7, 13), lambda i, j: INSIDE[operator](a[i, j])), te.reduce_axis((0, 13))
    product = te.compute((7, 24), lambda i, j: te.sum(inside[i, k] * w[k, j], axis=k))
    agree(compared({operator: te.create_prim_func([a, w, product])}))


@pytest.mark.parametrize("operator", ["math.exp", "math.absf"])
@pytest.mark.parametrize("where", ["factor", "product", "sum"])
def test_no_operation_is_lost_for_a_name(operator, where):
    """In one operation, as a user's pass or fusion may leave it."""
    lines = {
        "factor": "%p = OP %x : f32\n%m = arith.mulf %p, %y : f32\n%o = arith.addf %z, %m : f32",
        "product": "%p = arith.mulf %x, %y : f32\n%m = OP %p : f32\n%o = arith.addf %z, %m : f32",
        "sum": "%p = OP %z : f32\n%m = arith.mulf %x, %y : f32\n%o = arith.addf %p, %m : f32",
    }[where].replace("OP", operator)
    text = f"""
    func.func @f(%a: tensor<5x7xf32>, %b: tensor<7x9xf32>, %c: tensor<5x9xf32>)
        -> tensor<5x9xf32> {{
      %r = linalg.generic {{
          indexing_maps = [affine_map<(i, j, k) -> (i, k)>, affine_map<(i, j, k) -> (k, j)>,
                           affine_map<(i, j, k) -> (i, j)>],
          iterator_types = ["parallel", "parallel", "reduction"]}}
          ins(%a, %b : tensor<5x7xf32>, tensor<7x9xf32>) outs(%c : tensor<5x9xf32>) {{
        ^bb0(%x: f32, %y: f32, %z: f32):
          {lines}
          linalg.yield %o : f32
      }} -> tensor<5x9xf32>
      return %r : tensor<5x9xf32>
    }}"""
    with ir.Context():
        module = ir.Module.parse(text)
        lower_to(module, "linalg")
        assert operator in str(module)


@T.prim_func(s_tir=True)
def running_sums(a: T.handle, b: T.handle, n: T.int64):
    """A recurrence, of a size that the call gives."""
    A = T.match_buffer(a, (n, 5), "float32")
    B = T.match_buffer(b, (n, 5), "float32")
    for j in range(5):
        B[0, j] = A[0, j]
    for i, j in T.grid(n - 1, 5):
        B[i + 1, j] = B[i, j] + A[i + 1, j]


@T.prim_func(s_tir=True)
def scheduled(A: T.Buffer((12, 16), "float32"), B: T.Buffer((12, 16), "float32")):
    """Parallel, vectorised and unrolled loops, and an array of each thread's own."""
    for i in T.parallel(12):
        own = T.alloc_buffer((16,), "float32")
        for j in T.vectorized(16):
            own[j] = A[i, j] * T.float32(2)
        for j in T.unroll(16):
            if j % 2 == 0:
                B[i, j] = own[j]
            else:
                B[i, j] = T.max(own[j], T.float32(0))


@T.prim_func(s_tir=True)
def halved(A: T.Buffer((7,), "int32"), B: T.Buffer((7,), "int32")):
    """A loop that ends when the data say so, and divisions of negative numbers."""
    count = T.alloc_buffer((1,), "int32")
    for i in range(7):
        count[0] = 0
        while count[0] * count[0] < T.abs(A[i]):
            count[0] = count[0] + 1
        B[i] = count[0] + A[i] // 3 + A[i] % 3


@pytest.mark.extended
def test_loops_that_are_no_nests():
    kernels = {"running sums": running_sums, "scheduled": scheduled, "halved": halved}
    arguments = {"running sums": [(6, 5), (6, 5), 6]}
    found = compared(kernels, arguments)
    agree(found)
    assert {one.form for one in found.values()} == {ON_MEMREFS}


@pytest.mark.extended
@pytest.mark.parametrize("dtype", one_in(4, ["float32", "float64", "float16", "bfloat16"]))
def test_functions_of_floating_point_numbers(dtype):
    ops = [relax.op.exp, relax.op.tanh, relax.op.sqrt, relax.op.floor, relax.op.sigmoid]
    ops += [relax.op.sin, relax.op.log, relax.op.erf, relax.op.round, relax.op.ceil, relax.op.abs]
    if dtype == "bfloat16":
        # TVM has no code for the others in bfloat16.
        ops = [relax.op.abs, relax.op.negative]
    kernels = {str(one): kernel_of(one, ((40,), dtype)) for one in ops}
    agree(compared(kernels))


@pytest.mark.extended
@pytest.mark.parametrize(
    "dtype", one_in(4, ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
)
def test_operators_of_integers(dtype):
    pair = (((40,), dtype), ((40,), dtype))
    ops = [relax.op.add, relax.op.maximum, relax.op.bitwise_and, relax.op.less, relax.op.subtract]
    kernels = {str(one): kernel_of(one, *pair) for one in ops}
    kernels["floor division"] = kernel_of(relax.op.floor_divide, *pair)
    kernels["remainder"] = kernel_of(relax.op.floor_mod, *pair)
    kernels["to float"] = kernel_of(lambda x: relax.op.astype(x, "float32"), pair[0])
    agree(compared(kernels))


@T.prim_func(s_tir=True)
def elsewhere(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
    """Calls a function of another library."""
    for i in range(4):
        B[i] = T.call_pure_extern("float32", "cbrtf", A[i])


def test_what_no_dialect_says_is_refused_by_its_name():
    with pytest.raises(NotApplicable, match="the call of call_pure_extern"):
        convert_kernel(elsewhere, "elsewhere")


@T.prim_func(s_tir=True)
def on_a_gpu(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for i in T.thread_binding(64, "threadIdx.x"):
        B[i] = A[i]


def test_threads_of_a_gpu_are_refused():
    with pytest.raises(NotApplicable, match="threads of a GPU"):
        convert_kernel(on_a_gpu, "on_a_gpu")
