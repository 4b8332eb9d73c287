"""The passes that optimise kernels in MLIR: fusion on tensors, and the memory of what is left."""

import tvm

from tvm_ext.hardware.cost_model import cost_model
from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.mlir import require_mlir
from tvm_ext.relay_passes.graph_pass import graph_pass


@graph_pass
class MlirLinalgFusion:
    """Fuses and tiles the operations of kernels in linalg, and has MLIR generate their code.

    Before: ``linalg.matmul``, ``linalg.generic {bias}``, ``linalg.generic {relu}``
    After:  ``scf.for rows { linalg.matmul (slice); linalg.generic {bias, relu} }``

    It does nothing unless ``enabled`` is true, which takes torch-mlir. ``kernels`` chooses those
    with this in their name or in that of an ONNX node. MLIR's code runs on one thread.

    Leaves alone: kernels that are loops in MLIR and not linalg on tensors; tiles of operations with
    open sizes; targets other than CPUs.

    Run after: CheckBounds. Run before: MlirMemoryOptimization and ScheduleKernels.
    """

    enabled: bool = False
    kernels: str = ""

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself where it is not enabled; raises MlirError without torch-mlir."""
        machine = current_cpu()
        if not self.enabled or machine is None:
            return mod
        require_mlir()
        from tvm_ext.mlir.kept_modules import change_kernels
        from tvm_ext.mlir.linalg_fusion import fuse_and_tile

        model = cost_model(machine)
        return change_kernels(
            mod,
            "MlirLinalgFusion",
            "linalg",
            lambda module: fuse_and_tile(module, model),
            self.kernels,
        )


@graph_pass
class MlirMemoryOptimization:
    """Gives the arrays of kernels in MLIR less memory, and has MLIR generate their code.

    Before: ``%a = memref.alloc``, ``%b = memref.alloc``, which are never alive together
    After:  ``%c = memref.alloc``, ``%a = memref.view %c[0]``, ``%b = memref.view %c[0]``

    Arrays are allocated ahead of loops, small ones on the stack, freed after their last use, and
    placed at offsets of one array. It does nothing unless ``enabled`` is true, which takes
    torch-mlir. ``kernels`` is as for MlirLinalgFusion.

    Leaves alone: arrays with open sizes, and those of loops; targets other than CPUs.

    Run after: MlirLinalgFusion. Run before: ScheduleKernels.
    """

    enabled: bool = False
    kernels: str = ""

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself where it is not enabled; raises MlirError without torch-mlir."""
        if not self.enabled or current_cpu() is None:
            return mod
        require_mlir()
        from tvm_ext.mlir.kept_modules import change_kernels
        from tvm_ext.mlir.memory_optimization import optimize_memory

        return change_kernels(
            mod, "MlirMemoryOptimization", "bufferized", optimize_memory, self.kernels
        )
