"""The one place for TVM names which are private or have moved between releases, and for marks that
TVM leaves in kernels.

A TVM release that moves a name breaks this file and its test, and nothing else. One name a line.
Those of TVM's ONNX importer are in ``tvm_ext/onnx_frontend/tvm_compat.py``: they bring ``onnx``.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

from tvm import tirx
from tvm.base import _LOADED_LIBS as loaded_libraries
from tvm.ir import IRModule
from tvm.relax.expr import _update_type as set_type
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule import _ffi_api as meta_schedule_ffi
from tvm.s_tir.meta_schedule.logging import get_logger, get_logging_func
from tvm.s_tir.meta_schedule.search_strategy import SearchStrategy
from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator
from tvm.support.nvcc import tvm_callback_cuda_compile as compile_cuda_by_tvm
from tvm.target import Target
from tvm.target import codegen as llvm_codegen
from tvm_ffi import Array, WalkOrder, structural, structural_map
from tvm_ffi._ffi_api import ArrayGetItem as element_of_array
from tvm_ffi._ffi_api import ArraySize as size_of_array
from tvm_ffi._ffi_api import StructuralWalk as structural_walk
from tvm_ffi.structural import _callback_type_to_type_index as type_index

__all__ = [
    "compile_cuda_by_tvm",
    "element_of_array",
    "llvm_codegen",
    "loaded_libraries",
    "set_type",
    "size_of_array",
    "structural_walk",
    "tune_context",
    "type_index",
    "walk",
    "without_scope_marks",
]

# Groups statements while TVM builds a kernel (ScatterND, ScatterElements, NonMaxSuppression); means
# nothing afterwards, and code generation warns of it.
_SCOPE_MARK = "pragma_scope"


def tune_context(
    mod: IRModule,
    target: Target,
    space_generator: SpaceGenerator | None,
    search_strategy: SearchStrategy | None,
    name: str,
    seed: int,
) -> TuneContext:
    """MetaSchedule's ``TuneContext`` with one thread.

    Its own constructor first imports the tensor intrinsics of all GPUs, which takes ten seconds.
    """
    context = TuneContext.__new__(TuneContext)
    context.__init_handle_by_constructor__(
        meta_schedule_ffi.TuneContext,
        mod,
        target,
        space_generator,
        search_strategy,
        name,
        1,
        seed,
        get_logging_func(get_logger(__name__)),
    )
    meta_schedule_ffi.TuneContextInitialize(context)
    return context


def _elements(array: Array[Any]) -> Iterator[Any]:
    return map(partial(element_of_array, array), range(size_of_array(array)))


# Each element of an array, and each look-up of a type that a walk or a map asks for, takes TVM half
# a dozen calls of Python: a tenth of what is in Python when a model is compiled.
setattr(Array, "__iter__", _elements)  # noqa: B010
setattr(structural, type_index.__name__, cache(type_index))


@cache
def _type_indices(kinds: tuple[type, ...]) -> tuple[int, ...]:
    return tuple(type_index(kind, api_name="structural_walk") for kind in kinds)


def walk(root: Any, kinds: tuple[type, ...], visit: Callable[[Any], None]) -> None:
    """``visit`` for each node of some kinds, before those below it.

    ``tvm_ffi.structural_walk`` finds the numbers of the kinds anew each time, which takes longer
    than most walks.
    """
    visits = [(index, visit) for index in _type_indices(kinds)]
    structural_walk(root, visits, (), int(WalkOrder.PREORDER))


def without_scope_marks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` without the marks that TVM's IR builder leaves; itself when it has none."""
    body = structural_map(func.body, (tirx.AttrStmt, _inside))
    return func if body.same_as(func.body) else func.with_body(body)


def _inside(stmt: tirx.AttrStmt) -> tirx.Stmt:
    return stmt.body if stmt.attr_key == _SCOPE_MARK else stmt
