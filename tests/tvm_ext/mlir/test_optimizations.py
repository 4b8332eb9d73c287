"""Fusion and tiling on linalg, and the memory of modules: what is left, and the numbers."""

import numpy as np
import pytest
from small_models import assert_mlp, mlp, model, node, rand, value
from torch_mlir import ir
from unoptimised import HOST

import tvm_ext
from tvm_ext.hardware.cost_model import cost_model
from tvm_ext.mlir.linalg_fusion import fuse_and_tile, linalg_operations, tile_sizes
from tvm_ext.mlir.lowering import run_passes
from tvm_ext.mlir.memory_optimization import MemoryOfModule, memory_of, optimize_memory

FUSED = {"MlirLinalgFusion": {"enabled": True}}
SMALLER = {"MlirMemoryOptimization": {"enabled": True}}

ROWS = 512
CHAIN = f"""
func.func @chain(%x: tensor<{ROWS}x4096xf32>, %o: tensor<{ROWS}x4096xf32>)
    -> tensor<{ROWS}x4096xf32> {{
  %e = tensor.empty() : tensor<{ROWS}x4096xf32>
  %a = linalg.exp ins(%x : tensor<{ROWS}x4096xf32>) outs(%e : tensor<{ROWS}x4096xf32>)
      -> tensor<{ROWS}x4096xf32>
  %b = linalg.tanh ins(%a : tensor<{ROWS}x4096xf32>) outs(%e : tensor<{ROWS}x4096xf32>)
      -> tensor<{ROWS}x4096xf32>
  %c = linalg.negf ins(%b : tensor<{ROWS}x4096xf32>) outs(%o : tensor<{ROWS}x4096xf32>)
      -> tensor<{ROWS}x4096xf32>
  return %c : tensor<{ROWS}x4096xf32>
}}
"""

PRODUCT = """
func.func @product(%x: tensor<1024x64xf32>, %w: tensor<64x2048xf32>, %o: tensor<1024x2048xf32>)
    -> tensor<1024x2048xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1024x2048xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1024x2048xf32>) -> tensor<1024x2048xf32>
  %m = linalg.matmul ins(%x, %w : tensor<1024x64xf32>, tensor<64x2048xf32>)
      outs(%f : tensor<1024x2048xf32>) -> tensor<1024x2048xf32>
  %r = linalg.exp ins(%m : tensor<1024x2048xf32>) outs(%o : tensor<1024x2048xf32>)
      -> tensor<1024x2048xf32>
  return %r : tensor<1024x2048xf32>
}
"""

BUFFERS = """
func.func @three(%a: memref<64xf32>, %o: memref<64xf32>) {
  %x = memref.alloc() : memref<64xf32>
  linalg.exp ins(%a : memref<64xf32>) outs(%x : memref<64xf32>)
  %y = memref.alloc() : memref<64xf32>
  linalg.exp ins(%x : memref<64xf32>) outs(%y : memref<64xf32>)
  %z = memref.alloc() : memref<64xf32>
  linalg.exp ins(%y : memref<64xf32>) outs(%z : memref<64xf32>)
  linalg.exp ins(%z : memref<64xf32>) outs(%o : memref<64xf32>)
  memref.dealloc %x : memref<64xf32>
  memref.dealloc %y : memref<64xf32>
  memref.dealloc %z : memref<64xf32>
  return
}
"""

# Two arrays, alive at once and too large for the stack.
MANY = 64 * 2000
BUFFERS_OF = """
func.func private @keep(%a: KIND, %b: KIND)
func.func @two(%i: index) {
  %x = memref.alloc() : KIND
  %y = memref.alloc() : KIND
  func.call @keep(%x, %y) : (KIND, KIND) -> ()
  memref.dealloc %x : KIND
  memref.dealloc %y : KIND
  return
}
"""


@pytest.fixture
def parsed():
    """Reads text of MLIR in a context that lives as long as the test."""
    with ir.Context(), ir.Location.unknown():
        yield ir.Module.parse


def test_elementwise_operations_become_one(parsed):
    module = parsed(CHAIN)
    assert fuse_and_tile(module, cost_model(HOST)).startswith("3 operations of linalg became 1")
    assert len(linalg_operations(module)) == 1


def test_a_product_is_computed_in_the_tiles_of_what_reads_it(parsed):
    module = parsed(PRODUCT)
    assert "in tiles of" in fuse_and_tile(module, cost_model(HOST))
    assert module.operation.verify()
    text = str(module)
    assert text.index("scf.for") < text.index("linalg.generic")
    # Between the product and what reads it there is a tile; only the result is whole.
    assert text.count("tensor.empty() : tensor<1024x2048xf32>") <= 1


def test_tiles_fit_into_a_cache(parsed):
    module = parsed(PRODUCT)
    (*_, last) = linalg_operations(module)
    rows, columns = tile_sizes(last, cost_model(HOST))
    assert columns == 0
    assert 1 <= rows < 1024
    assert 1024 % rows == 0
    assert rows * 2048 * 12 <= max(HOST.l2_bytes, HOST.l3_bytes)


def test_arrays_share_one(parsed):
    module = parsed(BUFFERS)
    before = memory_of(module)
    assert (before.buffers, before.bytes) == (3, 768)
    run_passes(module, ["func.func(optimize-allocation-liveness)"])
    optimize_memory(module)
    after = memory_of(module)
    assert module.operation.verify()
    assert after.buffers <= 1
    assert after.bytes + after.stack_bytes <= before.bytes


def test_memory_is_counted_of_a_module_of_another_context():
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(BUFFERS_OF.replace("KIND", f"memref<{MANY}xf32>"))
    assert memory_of(module) == MemoryOfModule(2, 8 * MANY, 0)


@pytest.mark.parametrize(
    ("element", "nbytes"),
    [
        *(("i1", 1), ("i4", 1), ("i8", 1), ("i16", 2), ("i24", 4), ("index", 8)),
        *(("f8E4M3FN", 1), ("f8E5M2", 1), ("f4E2M1FN", 1), ("bf16", 2), ("f64", 8)),
        *(("vector<16xf32>", 64), ("vector<3xf32>", 16), ("vector<3x9xi1>", 6)),
        ("complex<f32>", 8),
    ],
)
def test_bytes_are_those_in_memory(parsed, element, nbytes):
    """LLVM's own layout says how far elements are apart."""
    module = parsed(BUFFERS_OF.replace("KIND", f"memref<{MANY}x{element}>"))
    assert memory_of(module) == MemoryOfModule(2, 2 * MANY * nbytes, 0)
    optimize_memory(module)
    assert memory_of(module) == MemoryOfModule(1, 2 * MANY * nbytes, 0)


@pytest.mark.parametrize(
    "kind",
    [
        "memref<?xf32>",
        f"memref<{MANY}xf32, strided<[2]>>",
        f"memref<{MANY}xf32, 1>",
        f"memref<{MANY}xf80>",
    ],
)
def test_arrays_whose_bytes_are_not_known_stay_apart(parsed, kind):
    sizes = "memref.alloc(%i)" if "?" in kind else "memref.alloc()"
    module = parsed(BUFFERS_OF.replace("KIND", kind).replace("memref.alloc()", sizes))
    assert optimize_memory(module) == "2 buffers of 0 bytes became 2 buffers of 0 bytes"


@pytest.mark.extended
@pytest.mark.parametrize(
    "options", [FUSED, SMALLER, FUSED | SMALLER], ids=["fused", "smaller", "all"]
)
def test_programs_have_the_same_numbers(options):
    compiled = tvm_ext.compile(mlp(), HOST, pass_config=options)
    assert_mlp(compiled, rand(5, 6))


def test_a_kernel_in_tiles_has_the_same_numbers():
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "b"], ["a"]),
        node("Tanh", ["a"], ["y"]),
    ]
    ends = [value("x", [1024, 32])], [value("y", [1024, 1024])]
    source = model(nodes, *ends, w=rand(32, 1024), b=rand(1024))
    plain = tvm_ext.compile(source, HOST)
    fused = tvm_ext.compile(source, HOST, pass_config=FUSED | SMALLER)
    (done,) = [one for one in fused.report.passes if one.name == "MlirLinalgFusion"]
    assert any("in tiles of" in one.reason for one in done.decisions), done.decisions
    x = rand(1024, 32)
    np.testing.assert_allclose(
        fused.run({"x": x})["y"], plain.run({"x": x})["y"], rtol=1e-4, atol=1e-5
    )
