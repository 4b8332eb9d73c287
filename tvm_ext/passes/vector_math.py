"""The pass that takes calls of the C library out of kernels' loops."""

from collections.abc import Mapping
from functools import partial

import tvm
from tvm import tirx

from tvm_ext.compiler.compile_context import once_for_kernel
from tvm_ext.compiler.graph_analysis import kernel_calls
from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.relay_passes.graph_pass import graph_pass, record_applied, record_refusal
from tvm_ext.relay_passes.spans import with_functions
from tvm_ext.tir_schedules.cpu.vector_math.rewrite import with_vector_math


@graph_pass
class VectorMath:
    """Writes exp, log, tanh, erf, sin, pow and the like out as code for whole vectors.

    Before: ``y[i] = T.exp(x[i])``, a call of ``expf`` for every element
    After:  ``y[i] = T.Let(...)``, a polynomial of about twenty vector operations

    All kernels get it, whatever operator they come from: sigmoid, gelu, softmax, LRN, loops written
    by hand. float16 and bfloat16 are computed as float32 and rounded once. NaN, infinities,
    denormals and -0 are as in IEEE 754, but for attention, whose weights are zero where they are no
    normal float. The largest error of each function is listed in docs/reference/vector-math.md.

    Leaves alone: float64 and vectors in the source; atan2, hypot, fmod; targets other than CPUs.

    Run after: the schedules, which count calls to see what is not worth computing twice.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when there is nothing to write out or take apart."""
        machine = current_cpu()
        if machine is None:
            return mod
        origins = {call.kernel: call.where for call in kernel_calls(mod)}
        changed: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
        for global_var, func in mod.functions.items():
            if not isinstance(func, tirx.PrimFunc):
                continue
            name = str(global_var.name_hint)
            result = once_for_kernel(
                "VectorMath", func, partial(with_vector_math, func, machine.features)
            )
            _record(origins.get(name) or name, result.replaced, result.left)
            if result.func is not func:
                changed[global_var] = result.func
        return with_functions(mod, changed)


def _record(where: str, replaced: Mapping[str, int], left: Mapping[str, int]) -> None:
    if replaced:
        record_applied("VectorMath", where, f"{', '.join(sorted(replaced))} in vectors")
    for function in sorted(left):
        record_refusal("VectorMath", where, f"{function} stays a call for each element")
