"""The decorator that makes a dataclass of options with ``transform_module`` a pass of TVM."""

from dataclasses import dataclass, fields
from typing import Any

import tvm

from tvm_ext.configs.errors import ConfigError
from tvm_ext.configs.nearest import nearest_hint

# TVM's numbers, a kernel's attribute ``op_pattern``: elementwise operators may follow, and none.
OUT_ELEMENTWISE_FUSABLE = 4
OPAQUE = 8


def graph_pass(cls: type) -> Any:
    """Turns ``cls`` into a factory of ``tvm.transform.Pass`` objects named like the class.

    ``cls`` declares its options as annotated fields with defaults, and a method
    ``transform_module(self, mod, ctx) -> IRModule``. The result is called with the options and
    its value goes into ``tvm.transform.Sequential``; ``options_class`` on it is the dataclass.
    """
    options_class: Any = dataclass(frozen=True)(cls)
    factory = tvm.transform.module_pass(options_class, opt_level=0, name=cls.__name__)
    factory.options_class = options_class
    return factory


def build_options(options_class: type, given: dict[str, Any]) -> dict[str, Any]:
    """Checks ``given`` against the fields of ``options_class``; returns it unchanged.

    Raises
    ------
    ConfigError
        An option is unknown, or a value has another type than the default of its field.
    """
    known = {field.name: field.default for field in fields(options_class)}
    for key, value in given.items():
        if key not in known:
            hint = nearest_hint(key, known)
            raise ConfigError(f"{options_class.__name__} has no option '{key}'; {hint}")
        default = known[key]
        if default is not None and not isinstance(value, type(default)):
            raise ConfigError(
                f"option '{key}' of {options_class.__name__} is {value!r}, "
                f"expected {type(default).__name__}: give it as such"
            )
    return given
