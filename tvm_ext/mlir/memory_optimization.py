"""Memory of modules of MLIR: in-place bufferization, hoisting, the stack, deallocation and reuse.

Before: an array of its own for each result, alive to the end of the function
After:  results in the memory of what is not read any more, small arrays on the stack, and the rest
        at offsets of one arena, which our own planner chooses
"""

import math
from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.dialects import memref

from tvm_ext.memory_planner import Buffer, plan_offsets
from tvm_ext.mlir.lowering import operations_below, run_passes
from tvm_ext.mlir.operations import index_constant

_LIFETIMES = (
    "func.func(buffer-hoisting)",
    "func.func(buffer-loop-hoisting)",
    "func.func(promote-buffers-to-stack{max-alloc-size-in-bytes=65536})",
    "canonicalize",
    "cse",
    "func.func(optimize-allocation-liveness)",
)

_ALIGNMENT = 64


@dataclass(frozen=True)
class MemoryOfModule:
    """What the functions of a module allocate, where sizes are known.

    Attributes
    ----------
    buffers, bytes : int
        Arrays on the heap, and their bytes together.
    stack_bytes : int
        Of arrays on the stack.
    """

    buffers: int
    bytes: int
    stack_bytes: int

    def __str__(self) -> str:
        """In a few words."""
        return f"{self.buffers} buffers of {self.bytes} bytes"


def memory_of(module: ir.Module) -> MemoryOfModule:
    """Counts what a bufferized module allocates."""
    found = [
        (op.name, _bytes(op.results[0].type) or 0)
        for op in operations_below(module.operation)
        if op.name in ("memref.alloc", "memref.alloca")
    ]
    heap = [nbytes for name, nbytes in found if name == "memref.alloc"]
    stack = [nbytes for name, nbytes in found if name == "memref.alloca"]
    return MemoryOfModule(len(heap), sum(heap), sum(stack))


def _bytes(kind: ir.MemRefType) -> int | None:
    """The bytes of an array; None where a size, the order of its elements or its type is open."""
    element = stored_bytes(kind.element_type)
    is_plain = (
        kind.affine_map == ir.AffineMap.get_identity(kind.rank, kind.context)
        and not kind.memory_space
    )
    if element is None or not kind.has_static_shape or not is_plain:
        return None
    return math.prod(kind.shape) * element


def stored_bytes(element: ir.Type) -> int | None:
    """The bytes from one element of an array to the next, as LLVM lays it out; None if unknown.

    An element is whole bytes, and as far from the next as its alignment asks for: a truth value is
    a byte, and a vector of three floats as long as one of four.
    """
    rows, lanes, scalar = 1, 1, element
    if isinstance(element, ir.VectorType):
        *outer, lanes = element.shape or [1]
        rows, scalar = math.prod(outer), element.element_type
    elif isinstance(element, ir.ComplexType):
        rows, scalar = 2, element.element_type
    bits = _INDEX_BITS if isinstance(scalar, ir.IndexType) else getattr(scalar, "width", None)
    if bits is None:
        return None
    nbytes = -(-lanes * bits // 8)
    return rows * (1 << (nbytes - 1).bit_length())


_INDEX_BITS = 64


def optimize_memory(module: ir.Module) -> str:
    """Hoists, promotes to the stack, frees early, and puts arrays of known size into an arena.

    Raises MlirError where a pass of MLIR fails.

    Parameters
    ----------
    module : ir.Module
        A bufferized module, with deallocations, which is changed.

    Returns
    -------
    str
        What was done, in a few words.
    """
    before = memory_of(module)
    run_passes(module, _LIFETIMES)
    for op in module.body.operations:
        if op.operation.name == "func.func" and len(op.regions[0].blocks) == 1:
            _share(op.regions[0].blocks[0])
    return f"{before} became {memory_of(module)}"


@dataclass(frozen=True)
class _Lifetime:
    """An allocation of a block, and the places from where to where its memory is needed."""

    alloc: ir.Operation
    free: ir.Operation
    buffer: Buffer


def _share(block: ir.Block) -> None:
    """Puts the arrays that a block allocates and frees into one."""
    found = _lifetimes(block)
    if len(found) < 2:
        return
    plan = plan_offsets([one.buffer for one in found])
    with ir.InsertionPoint.at_block_begin(block), ir.Location.unknown(block.owner.context):
        byte = ir.IntegerType.get_signless(8)
        arena = memref.alloc(ir.MemRefType.get([plan.size], byte), [], [], alignment=_ALIGNMENT)
    for one, offset in zip(found, plan.offsets, strict=True):
        with ir.InsertionPoint(one.alloc), one.alloc.location:
            kind = one.alloc.results[0].type
            view = memref.view(kind, arena, index_constant(offset), [])
            one.alloc.results[0].replace_all_uses_with(view)
        one.free.erase()
        one.alloc.erase()
    *_, last = block.operations
    with ir.InsertionPoint(last), last.location:
        memref.dealloc(arena)


def _lifetimes(block: ir.Block) -> list[_Lifetime]:
    operations = [each.operation for each in block.operations]
    # By the first of the operations that free: what is freed twice, or elsewhere, is left alone.
    frees = {hash(op.operands[0]): n for n, op in enumerate(operations) if _frees(op)}
    found = []
    for place, op in enumerate(operations):
        nbytes = _bytes(op.results[0].type) if op.name == "memref.alloc" else None
        end = None if nbytes is None else frees.get(hash(op.results[0]))
        if nbytes is not None and end is not None:
            buffer = Buffer(f"at {place}", nbytes, place, end, _ALIGNMENT)
            found.append(_Lifetime(op, operations[end], buffer))
    return found


def _frees(op: ir.Operation) -> bool:
    return bool(op.name == "memref.dealloc")
