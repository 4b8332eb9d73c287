"""The one place that imports TVM names which are private or have moved between releases.

A TVM release that moves a name breaks this file and its test, and nothing else. One name a line.
Those of TVM's ONNX importer are in ``tvm_ext/onnx_frontend/tvm_compat.py``: they bring ``onnx``.
"""

from tvm.base import _LOADED_LIBS as loaded_libraries
from tvm.ir import IRModule
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule import _ffi_api as meta_schedule_ffi
from tvm.s_tir.meta_schedule.logging import get_logger, get_logging_func
from tvm.s_tir.meta_schedule.search_strategy import SearchStrategy
from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator
from tvm.support.nvcc import tvm_callback_cuda_compile as compile_cuda_by_tvm
from tvm.target import Target
from tvm.target import codegen as llvm_codegen

__all__ = [
    "compile_cuda_by_tvm",
    "llvm_codegen",
    "loaded_libraries",
    "tune_context",
]


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
