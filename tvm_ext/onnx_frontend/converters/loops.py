"""Kernels that are written as loops, for operators that no tensor expression describes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import tvm_ffi
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.onnx_frontend.converters.arguments import sizes_of
from tvm_ext.tir_schedules.analysis.loop_nest import substitute

# Iterations of a loop that are too few to be handed to threads, where there is another loop.
_FEW = 4

# Reads and writes the buffers that it is given, inputs first, through T's loops and branches.
LoopBody = Callable[..., None]


def emit_loops(
    bb: relax.BlockBuilder,
    name: str,
    inputs: Sequence[relax.Expr],
    outputs: Sequence[tuple[Sequence[Any], str]],
    body: LoopBody,
    attrs: Mapping[str, str] | None = None,
    primfunc_attrs: Mapping[str, str] | None = None,
) -> list[relax.Expr]:
    """One kernel that runs ``body`` once.

    Parameters
    ----------
    name : str
        Of the kernel.
    inputs : sequence of relax.Expr
        Tensors that it reads.
    outputs : sequence of (shape, dtype)
        Tensors that it writes, in which nothing is written beforehand.
    body : callable
        Called with a buffer for each input and output, inside of TVM's builder of TensorIR. It
        may read symbolic sizes of the inputs.
    attrs : mapping of str to str, optional
        Annotations of the kernel's block, for templates.
    primfunc_attrs : mapping of str to str, optional
        Attributes of the kernel, for passes.

    Returns
    -------
    list[relax.Expr]
        One tensor for each of ``outputs``.
    """
    shapes = [list(shape) for shape, _ in outputs]

    def statement(read: Sequence[tirx.Buffer], written: Sequence[tirx.Buffer]) -> tirx.For:
        # The builder takes one statement: a loop of one turn around the body's.
        with IRBuilder() as builder:
            with T.serial(0, 1):
                body(*(T.buffer_proxy(buffer) for buffer in (*read, *written)))
            return substitute(builder.get(), _own_sizes(inputs, read))

    def kernel(*tensors: te.Tensor) -> Any:
        return te.extern(
            shapes,
            list(tensors),
            statement,
            name=name,
            dtype=[dtype for _, dtype in outputs],
            attrs=dict(attrs or {}),
        )

    result = bb.emit_te(
        kernel, *inputs, primfunc_name_hint=name, primfunc_attrs=dict(primfunc_attrs or {})
    )
    if len(outputs) == 1:
        return [result]
    return [bb.emit(relax.TupleGetItem(result, place)) for place in range(len(outputs))]


def _own_sizes(
    inputs: Sequence[relax.Expr], buffers: Sequence[tirx.Buffer]
) -> dict[tirx.Var, tirx.Var]:
    """The kernel's variables for those of the graph in sizes of inputs.

    TVM gives the kernel variables of its own, in the same expressions, but not in the body.
    """
    return {
        variable: own
        for data, buffer in zip(inputs, buffers, strict=True)
        for size, own_size in zip(sizes_of(data), buffer.shape, strict=True)
        for variable, own in zip(_variables(size), _variables(own_size), strict=True)
    }


def _variables(size: tirx.Expr | int) -> list[tirx.Var]:
    found: list[tirx.Var] = []
    tvm_ffi.structural_walk(size, (tirx.Var, found.append))
    return found


def local_array(size: int, dtype: str) -> Any:
    """A few elements that an iteration of loops keeps for itself."""
    # On a CPU TVM puts small arrays of this scope on the stack, and asks for memory for others.
    scope = "global" if current_cpu() else "local"
    return T.buffer_proxy(T.alloc_buffer((size,), dtype, scope=scope))


@contextmanager
def nested(*extents: Any) -> Iterator[list[Any]]:
    """Loops in one another, from none to many; gives their variables."""
    with T.grid(*extents, 1, 1) as variables:
        yield list(variables)[: len(extents)]


@contextmanager
def in_any_order(*extents: Any) -> Iterator[list[Any]]:
    """The same of loops whose iterations the writer knows to be independent."""
    with ExitStack() as stack:
        variables = [stack.enter_context(T.parallel(0, extent)) for extent in (*extents, 1)]
        yield variables[: len(extents)]


@contextmanager
def on_threads(*extents: Any) -> Iterator[list[Any]]:
    """The same on a CPU: one of the loops runs on threads, and the others inside of it.

    That is the longest one, or one of an extent that a run decides if no other is long.
    """
    known = [extent if isinstance(extent, int) else _FEW for extent in extents]
    outer = max(range(len(extents)), key=lambda place: known[place], default=None)
    with ExitStack() as stack:
        variables: dict[int, Any] = {}
        if outer is not None:
            variables[outer] = stack.enter_context(T.parallel(0, extents[outer]))
        for place in (one for one in range(len(extents)) if one != outer):
            variables[place] = stack.enter_context(T.serial(0, extents[place]))
        yield [variables[place] for place in range(len(extents))]
