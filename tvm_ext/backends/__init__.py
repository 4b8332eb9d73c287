"""Our backends, each composed in one file, and what plug-ins add: importing this registers all.

A distribution offers what it adds through entry points. One in the group ``tvm_ext.backends`` names
a ``Backend``; one in any of ``tvm_ext.backends``, ``tvm_ext.templates`` and
``tvm_ext.cost_models`` may name a function without parameters that calls ``register_backend``,
``register_template`` or ``register_cost_model``. One that fails is left out with a warning.
"""

from dataclasses import replace
from importlib.metadata import EntryPoint

from tvm_ext.backends.cpu import CPU
from tvm_ext.backends.cuda import CUDA
from tvm_ext.backends.wafer import WAFER
from tvm_ext.hardware.backend import Backend, register_backend
from tvm_ext.passes.registry import load_group

# Backends first: the others name them.
GROUPS = ("tvm_ext.backends", "tvm_ext.templates", "tvm_ext.cost_models")


def _load(point: EntryPoint) -> None:
    loaded = point.load()
    if isinstance(loaded, Backend):
        source = point.dist.name if point.dist is not None else loaded.source
        register_backend(replace(loaded, source=source))
    else:
        loaded()


for _backend in (CPU, CUDA, WAFER):
    register_backend(_backend)
for _group in GROUPS:
    load_group(_group, _load)
