"""The pass that has MLIR generate the code of a CPU's kernels."""

import tvm
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.mlir import require_mlir
from tvm_ext.relay_passes.graph_pass import graph_pass, record_applied, record_refusal
from tvm_ext.relay_passes.spans import with_functions
from tvm_ext.tir_schedules.analysis.in_place import keeps_module


@graph_pass
class MlirCodeGeneration:
    """Has MLIR generate the code of kernels, which TVM's LLVM compiles with the rest.

    Before: ``for i in T.parallel(n): ...``
    After:  a call of ``kernel_mlir``, and its code as text of LLVM

    It takes kernels whose module of MLIR a pass has changed, and with ``enabled`` all others too,
    which takes torch-mlir. MLIR's code runs on one thread.

    Leaves alone: kernels with a call or value that MLIR's dialects have no operation for; targets
    other than CPUs.

    Run after: the storage is planned, as nobody reads the loops of these kernels any more. Run
    before: nothing in particular.
    """

    enabled: bool = False

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself where no kernel is taken; raises MlirError without torch-mlir."""
        machine = current_cpu()
        kernels = {v: f for v, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
        if not self.enabled:
            kernels = {v: f for v, f in kernels.items() if keeps_module(f)}
        if machine is None or not kernels:
            return mod
        require_mlir()
        from tvm_ext.mlir.code_generation import with_kept_code, with_mlir_code

        changed: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
        for variable, func in kernels.items():
            name = str(variable.name_hint)
            try:
                if keeps_module(func):
                    changed[variable] = with_kept_code(func, name)
                else:
                    changed[variable] = with_mlir_code(func, name, machine)
                record_applied("MlirCodeGeneration", name, "MLIR generates its code")
            except NotApplicable as refused:
                record_refusal("MlirCodeGeneration", name, refused.reason)
        return with_functions(mod, changed)
