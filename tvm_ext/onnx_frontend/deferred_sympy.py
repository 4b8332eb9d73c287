"""Imports ``onnx_ir`` such that it imports sympy when it first computes with it: never for us.

Sympy takes longer to import than ``onnx`` and ``onnx_ir`` together, and that with each process that
compiles a model. Whoever else imports it gets the module itself.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

# The second makes a table of sympy's functions when it is imported.
_DEFERRED = ("sympy", "onnx_ir._symbolic_shapes")


class _Deferred(ModuleType):
    """Stands for a module in those that import it now; an attribute imports it.

    Not ``importlib.util.LazyLoader``: a second thread sees its module half imported, and an import
    of a submodule ahead of the first attribute makes that twice.
    """

    def __getattr__(self, name: str) -> Any:
        self.make_way()
        return getattr(import_module(self.__name__), name)

    def make_way(self) -> None:
        """Lets the next import find the module."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]


_missing = [_Deferred(name) for name in _DEFERRED if name not in sys.modules]
sys.modules.update({module.__name__: module for module in _missing})
try:
    import onnx_ir  # noqa: F401
finally:
    for _module in _missing:
        _module.make_way()
