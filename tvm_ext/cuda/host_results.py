"""Results of operators that the host computes (NonZero, Unique) on the device of their input.

TVM's functions copy the input to the host, call NumPy, and leave the result there: a kernel that
goes on with it would be handed memory of the host.
"""

from collections.abc import Callable
from typing import Any

import tvm

HOST_FUNCTIONS = ("relax.run.nonzero", "relax.run.unique")

_wrapped: dict[str, Callable[..., Any]] = {}


def register_host_results() -> None:
    """Puts functions in the place of TVM's that give results where the input is, once."""
    for name in HOST_FUNCTIONS:
        own = tvm.get_global_func(name, allow_missing=True)
        if own is not None and name not in _wrapped:
            _wrapped[name] = beside_input(own)
            tvm.register_global_func(name, _wrapped[name], override=True)


def beside_input(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of a tensor and options, with results on the tensor's device."""

    def call(x: Any, *options: Any) -> Any:
        found = function(x, *options)
        if x.device == tvm.cpu(0):
            return found
        if isinstance(found, tvm.runtime.Tensor):
            return tvm.runtime.tensor(found.numpy(), x.device)
        return [tvm.runtime.tensor(one.numpy(), x.device) for one in found]

    return call
