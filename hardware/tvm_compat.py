"""The one place that imports TVM names which are private or have moved between releases.

A TVM release that moves a name breaks this file and its test, and nothing else. One name a line.
"""

from tvm.base import _LOADED_LIBS as loaded_libraries
from tvm.ir import IRModule
from tvm.relax.frontend.onnx.onnx_frontend import Cast as OnnxCast
from tvm.relax.frontend.onnx.onnx_frontend import Gather as OnnxGather
from tvm.relax.frontend.onnx.onnx_frontend import GatherElements as OnnxGatherElements
from tvm.relax.frontend.onnx.onnx_frontend import GatherND as OnnxGatherND
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter, OnnxOpConverter, onnx_input
from tvm.relax.frontend.onnx.onnx_frontend import ScatterElements as OnnxScatterElements
from tvm.relax.frontend.onnx.onnx_frontend import ScatterND as OnnxScatterND
from tvm.relax.frontend.onnx.onnx_frontend import Slice as OnnxSlice
from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map as onnx_converter_map
from tvm.relax.frontend.onnx.onnx_frontend import get_constant as onnx_constant
from tvm.relax.frontend.onnx.onnx_frontend import get_type as onnx_type_name
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule import _ffi_api as meta_schedule_ffi
from tvm.s_tir.meta_schedule.logging import get_logger, get_logging_func
from tvm.s_tir.meta_schedule.search_strategy import SearchStrategy
from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator
from tvm.support.nvcc import tvm_callback_cuda_compile as compile_cuda_by_tvm
from tvm.target import Target
from tvm.target import codegen as llvm_codegen

__all__ = [
    "ONNXGraphImporter",
    "OnnxCast",
    "OnnxGather",
    "OnnxGatherElements",
    "OnnxGatherND",
    "OnnxOpConverter",
    "OnnxScatterElements",
    "OnnxScatterND",
    "OnnxSlice",
    "compile_cuda_by_tvm",
    "llvm_codegen",
    "loaded_libraries",
    "onnx_constant",
    "onnx_converter_map",
    "onnx_converter_names",
    "onnx_input",
    "onnx_type_name",
    "tune_context",
]


def onnx_converter_names() -> frozenset[str]:
    """Operator names that TVM's ONNX importer has a converter for (domains are not told apart)."""
    return frozenset(onnx_converter_map())


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
