"""What a library is to compute in the place of a kernel, as an attribute of the kernel."""

import json
from dataclasses import asdict, dataclass
from typing import Literal

import tvm
from tvm import tirx

LIBRARY_CALL = "tvm_ext.library_call"
"""Attribute of a kernel that calls a library; its value is ``LibraryProduct.to_json``."""

Epilogue = Literal["", "bias", "bias_relu"]
"""What follows the product: nothing, a bias of each column, and max(x, 0) of that."""


@dataclass(frozen=True)
class LibraryProduct:
    """``C[b, i, j] = epilogue(sum over k of A[b, i, k] * B[b, k, j])``, row by row in memory.

    Attributes
    ----------
    dtype, result : str
        Types of the operands, and of the result and the bias.
    batch, rows, columns, steps : int
        Extents of b, i, j and k. A batch of 1 stands for matrices.
    transposed : bool
        Whether B lies in memory as [b, j, k].
    epilogue : Epilogue
        See there.
    """

    dtype: str
    result: str
    batch: int
    rows: int
    columns: int
    steps: int
    transposed: bool = False
    epilogue: Epilogue = ""

    @property
    def symbol(self) -> str:
        """The function that computes it, equal for equal products."""
        sizes = [str(n) for n in (self.batch, self.rows, self.columns, self.steps)]
        notes = ["transposed"] * self.transposed + [self.epilogue] * bool(self.epilogue)
        return "_".join(("tvm_ext_cublas", self.dtype, self.result, *sizes, *notes))

    @property
    def pattern(self) -> str:
        """What TVM's patterns for cuBLAS call it."""
        notes = ["transposed"] * self.transposed + [self.epilogue] * bool(self.epilogue)
        return "_".join(("cublas.matmul", *notes))

    @property
    def shapes(self) -> list[list[int]]:
        """Of A, B and, if there is one, the bias; then of the result."""
        lead = [self.batch] if self.batch > 1 else []
        b = (self.columns, self.steps) if self.transposed else (self.steps, self.columns)
        bias = [[self.columns]] if self.epilogue else []
        return [
            [*lead, self.rows, self.steps],
            [*lead, *b],
            *bias,
            [*lead, self.rows, self.columns],
        ]

    @property
    def dtypes(self) -> list[str]:
        """The same for the types."""
        return [self.dtype, self.dtype, *[self.result] * bool(self.epilogue), self.result]

    def to_json(self) -> str:
        """See ``LIBRARY_CALL``."""
        return json.dumps(asdict(self), sort_keys=True)


def library_products(mod: tvm.IRModule) -> list[LibraryProduct]:
    """What the kernels of a module leave to a library, each once."""
    found = {
        str(func.attrs[LIBRARY_CALL])
        for func in mod.functions.values()
        if isinstance(func, tirx.PrimFunc) and func.attrs and LIBRARY_CALL in func.attrs
    }
    return [LibraryProduct(**json.loads(text)) for text in sorted(found)]
