"""From a trained ONNX model to a checked, explained, fast program with Apache TVM.

>>> import tvm_ext
>>> model = tvm_ext.compile("model.onnx", target="cpu")  # doctest: +SKIP
>>> outputs = model.run({"x": array})  # doctest: +SKIP
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Name to the module that defines it. Resolved on first use: importing TVM takes a second, which
# `tvm-ext --help` need not pay.
_PUBLIC = {
    "CompiledModel": "tvm_ext.compiled_model",
    "TensorSpec": "tvm_ext.tensor_spec",
    "TvmExtError": "tvm_ext.errors",
    "compile": "tvm_ext.api",
    "load": "tvm_ext.api",
    "register_backend": "tvm_ext.hardware.backend",
    "register_cost_model": "tvm_ext.tuning.backend",
    "register_pass": "tvm_ext.passes.registry",
    "register_template": "tvm_ext.tir_schedules.backend",
    "tune": "tvm_ext.tune_model",
}

__all__ = [
    "CompiledModel",
    "TensorSpec",
    "TvmExtError",
    "__version__",
    "compile",
    "load",
    "register_backend",
    "register_cost_model",
    "register_pass",
    "register_template",
    "tune",
]

if TYPE_CHECKING:
    from tvm_ext.api import compile, load
    from tvm_ext.compiled_model import CompiledModel
    from tvm_ext.errors import TvmExtError
    from tvm_ext.hardware.backend import register_backend
    from tvm_ext.passes.registry import register_pass
    from tvm_ext.tensor_spec import TensorSpec
    from tvm_ext.tir_schedules.backend import register_template
    from tvm_ext.tune_model import tune
    from tvm_ext.tuning.backend import register_cost_model


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tvm_ext' has no attribute '{name}'")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
