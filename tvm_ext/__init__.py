"""From a trained ONNX model to a checked, explained, fast program with Apache TVM.

>>> import tvm_ext
>>> model = tvm_ext.compile("model.onnx", target="cpu")  # doctest: +SKIP
>>> outputs = model.run({"x": array})  # doctest: +SKIP
"""

import gc
import importlib
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

# The one place of the version: the build, saved models and the command line read it here.
__version__ = "0.1.0"

# Name to the module that defines it. Resolved on first use: importing TVM takes a second, which
# `tvm-ext --help` need not pay.
_PUBLIC = {
    "CompiledModel": "tvm_ext.compiled_model",
    "PassPipeline": "tvm_ext.passes.pipeline",
    "ScheduleKernels": "tvm_ext.passes.schedule_kernels",
    "TensorSpec": "tvm_ext.tensor_spec",
    "TvmExtError": "tvm_ext.errors",
    "check_model": "tvm_ext.check.check",
    "compile": "tvm_ext.api",
    "compile_training": "tvm_ext.training.trainer",
    "generate": "tvm_ext.generation.generate",
    "load": "tvm_ext.runtime",
    "register_backend": "tvm_ext.hardware.backend",
    "register_cost_model": "tvm_ext.tuning.backend",
    "register_pass": "tvm_ext.passes.registry",
    "register_template": "tvm_ext.tir_schedules.backend",
    "transcribe": "tvm_ext.generation.transcribe",
    "tune": "tvm_ext.tune_model",
}

__all__ = [
    "CompiledModel",
    "PassPipeline",
    "ScheduleKernels",
    "TensorSpec",
    "TvmExtError",
    "__version__",
    "check_model",
    "compile",
    "compile_training",
    "generate",
    "load",
    "register_backend",
    "register_cost_model",
    "register_pass",
    "register_template",
    "transcribe",
    "tune",
]

if TYPE_CHECKING:
    from tvm_ext.api import compile
    from tvm_ext.check.check import check_model
    from tvm_ext.compiled_model import CompiledModel
    from tvm_ext.errors import TvmExtError
    from tvm_ext.generation.generate import generate
    from tvm_ext.generation.transcribe import transcribe
    from tvm_ext.hardware.backend import register_backend
    from tvm_ext.passes.pipeline import PassPipeline
    from tvm_ext.passes.registry import register_pass
    from tvm_ext.passes.schedule_kernels import ScheduleKernels
    from tvm_ext.runtime import load
    from tvm_ext.tensor_spec import TensorSpec
    from tvm_ext.tir_schedules.backend import register_template
    from tvm_ext.training.trainer import compile_training
    from tvm_ext.tune_model import tune
    from tvm_ext.tuning.backend import register_cost_model


def _named_pipeline(**options: Any) -> Any:
    """What ``relax.get_pipeline("tvm_ext")`` returns; see ``tvm_ext_pipeline``."""
    from tvm_ext.compiler.stages import tvm_ext_pipeline

    return tvm_ext_pipeline(**options)


def _name_pipeline() -> None:
    """Gives our pipeline its name in TVM, once."""
    from tvm.relax.pipeline import PIPELINE_MAP

    PIPELINE_MAP.setdefault("tvm_ext", _named_pipeline)


# A program that has not loaded TVM yet gets the name with the first thing from here that loads it.
if "tvm" in sys.modules:
    _name_pipeline()


# How long the module of each of these took to import: the report of the first compilation holds
# what its caller waited for.
import_seconds: dict[str, float] = {}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tvm_ext' has no attribute '{name}'")
    begun = time.perf_counter()
    with without_garbage_collection():
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
        if "tvm" in sys.modules:
            _name_pipeline()
    globals()[name] = value
    import_seconds[name] = time.perf_counter() - begun
    return value


_collection = threading.Lock()
_without_collection = 0
_collects_else = False


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """While modules are imported and while a model is compiled, by any number of threads.

    What is imported stays, and what a compilation drops is free at once, by counts of references:
    looking through 2,000 modules for garbage takes a tenth of the time of either.
    """
    global _without_collection, _collects_else
    with _collection:
        if _without_collection == 0:
            _collects_else = gc.isenabled()
            gc.disable()
        _without_collection += 1
    try:
        yield
    finally:
        with _collection:
            _without_collection -= 1
            if _without_collection == 0 and _collects_else:
                gc.enable()


def __dir__() -> list[str]:
    return sorted(__all__)
