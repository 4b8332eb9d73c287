"""The pass that hands NaN on through Relu and its like."""

from functools import partial

import tvm
from tvm import tirx

from tvm_ext.compiler.compile_context import once_for_kernel
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.max_and_min import with_constants_first
from tvm_ext.relay_passes.spans import with_functions


@graph_pass
class PropagateNan:
    """Puts constants first in ``max`` and ``min`` of floating-point numbers.

    Before: ``T.max(x[i], 0.0)``, which is 0 where ``x[i]`` is NaN
    After:  ``T.max(0.0, x[i])``, which is NaN there

    TVM's ``max(a, b)`` is ``b`` where one of them is NaN. It writes Relu as ``max(x, 0)``, which
    hides that a model has gone astray; ONNX Runtime's passes NaN on, and so does ``max(0, x)``.

    Leaves alone: calls of two computed values, and integers, which have no NaN.

    Run after: the schedules, which know kernels by their text.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when no kernel has such a call."""
        changed = {}
        for global_var, func in mod.functions.items():
            if not isinstance(func, tirx.PrimFunc):
                continue
            made = once_for_kernel("PropagateNan", func, partial(with_constants_first, func))
            if not made.same_as(func):
                changed[global_var] = made
        return with_functions(mod, changed)
