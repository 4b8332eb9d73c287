"""Kernels take tensors that begin anywhere, so that a caller's arrays are read where they lie.

TVM promises LLVM that each argument begins at a multiple of 64 bytes. NumPy's arrays begin at
multiples of 16, slices of them anywhere: they would have to be copied.
"""

import tvm
from tvm import tirx
from tvm_ffi import structural_map

_PROMISE = "storage_alignment"


@tirx.transform.prim_func_pass(opt_level=0, name="UnalignedArguments")
class UnalignedArguments:
    """Takes back the promise that arguments begin at a multiple of 64 bytes.

    Before: ``with T.attr(x, "storage_alignment", 64): body``
    After:  ``body``, in which LLVM knows that an argument is aligned to its elements

    Loads and stores of vectors that expect nothing have been as fast as those for aligned memory
    since AVX, where the memory is aligned.

    Leaves alone: buffers that a kernel allocates, which are aligned.

    Run after: MakePackedAPI, which writes the promises.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Functions that were promised nothing stay as they are."""
        return func.with_body(structural_map(func.body, (tirx.AttrStmt, _without_promise)))


def _without_promise(node: tirx.AttrStmt) -> tirx.Stmt:
    return node.body if node.attr_key == _PROMISE else node
