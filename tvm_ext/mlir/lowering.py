"""The way of a module through MLIR's own passes, in stages: linalg, bufferized, llvm."""

from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from tvm_ext.configs.errors import last_line
from tvm_ext.mlir import MlirError

# Named operations where a generic one is a matmul, a fill, a transpose.
_LINALG = ("linalg-specialize-generic-ops", "canonicalize", "cse")

_BUFFERIZED = (
    # Of two elementwise operations, one after the other, one; the tensor between them goes.
    "linalg-fuse-elementwise-ops",
    "canonicalize",
    "cse",
    # What is put into a buffer in the end is computed there.
    "eliminate-empty-tensors",
    "one-shot-bufferize",
    "buffer-deallocation-pipeline",
    "canonicalize",
    "cse",
)

_LLVM = (
    "convert-linalg-to-loops",
    "canonicalize",
    # LLVM has no such arithmetic for some types, and the C library no functions of them.
    "func.func(math-extend-to-supported-types)",
    "func.func(arith-expand{include-bf16=true})",
    "expand-strided-metadata",
    "lower-affine",
    "canonicalize",
    "cse",
    "convert-scf-to-cf",
    "convert-math-to-llvm",
    "convert-math-to-libm",
    "convert-arith-to-llvm",
    "convert-index-to-llvm",
    "finalize-memref-to-llvm",
    "convert-func-to-llvm",
    "convert-cf-to-llvm",
    "reconcile-unrealized-casts",
    "canonicalize",
    "cse",
)

STAGES: dict[str, Sequence[str]] = {
    "linalg": _LINALG,
    "bufferized": _BUFFERIZED,
    "llvm": _LLVM,
}


def lower_to(module: ir.Module, stage: str) -> None:
    """Brings a module, as it was converted, to a stage; each pass ends in MLIR's verifier.

    Raises MlirError where a pass of MLIR fails.
    """
    for name, passes in STAGES.items():
        run_passes(module, passes)
        if name == stage:
            return


def run_passes(module: ir.Module, passes: Sequence[str]) -> None:
    """Runs passes of MLIR, by their names in its pipelines. Raises MlirError where one fails."""
    with module.context:
        for one in passes:
            try:
                PassManager.parse(f"builtin.module({one})").run(module.operation)
            except (ir.MLIRError, ValueError, RuntimeError) as error:
                raise MlirError(
                    f"MLIR's pass {one} fails: {last_line(error)}; expected a module that it "
                    "takes: leave the kernel to TVM's code generation"
                ) from error
