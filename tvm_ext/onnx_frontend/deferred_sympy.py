"""Imports ``onnx_ir`` such that it imports sympy when it first computes with it: never for us.

Sympy takes longer to import than ``onnx`` and ``onnx_ir`` together, and that with each process that
compiles a model.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

# The second makes a table of sympy's functions when it is imported.
_DEFERRED = ("sympy", "onnx_ir._symbolic_shapes")


class _DeferredFinder(MetaPathFinder):
    """Finds the modules of ``_DEFERRED`` such that their first attribute imports them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _DEFERRED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


_finder = _DeferredFinder()
sys.meta_path.insert(0, _finder)
try:
    import onnx_ir  # noqa: F401
finally:
    sys.meta_path.remove(_finder)
