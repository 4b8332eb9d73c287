"""The activation functions of a recurrent node, with the parameters of each."""

import math
from collections.abc import Iterator

from tvm_ext.errors import FormError
from tvm_ext.tir_schedules.recurrence.description import Activation, Cell

# The functions of one direction where the node names none (ONNX operators LSTM, GRU, RNN).
_DEFAULTS: dict[Cell, tuple[str, ...]] = {
    "LSTM": ("sigmoid", "tanh", "tanh"),
    "GRU": ("sigmoid", "tanh"),
    "RNN": ("tanh",),
}

# Defaults of alpha and beta of each function; None for a parameter that it does not take, NaN for
# one that has to be given: ONNX Runtime takes 0 for it, and the specification says 1 or nothing.
_PARAMETERS: dict[str, tuple[float | None, float | None]] = {
    "affine": (math.nan, math.nan),
    "elu": (1.0, None),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01, None),
    "relu": (None, None),
    "scaledtanh": (math.nan, math.nan),
    "sigmoid": (None, None),
    "softplus": (None, None),
    "softsign": (None, None),
    "tanh": (None, None),
    "thresholdedrelu": (math.nan, None),
}


def activations_of(cell: Cell, directions: int, attr: dict) -> tuple[tuple[Activation, ...], ...]:
    """The functions of each direction.

    A number of ``activation_alpha`` (``_beta``) goes to the next function that takes one.

    Raises
    ------
    FormError
        There are not as many functions as the node needs, more parameters than they take or fewer
        than they need, or a name is unknown.
    """
    count = len(_DEFAULTS[cell])
    names = [_text(name).lower() for name in attr.get("activations", ())]
    names = names or list(_DEFAULTS[cell]) * directions
    if len(names) != count * directions:
        raise FormError(f"it has {len(names)} activations, not {count * directions}")
    unknown = [name for name in names if name not in _PARAMETERS]
    if unknown:
        raise FormError(f"activation '{unknown[0]}' is none of ONNX's")
    alphas = iter([float(value) for value in attr.get("activation_alpha", ())])
    betas = iter([float(value) for value in attr.get("activation_beta", ())])
    found = [_activation(name, alphas, betas) for name in names]
    if next(alphas, None) is not None or next(betas, None) is not None:
        raise FormError("it has more activation_alpha or activation_beta than its functions take")
    return tuple(tuple(found[i : i + count]) for i in range(0, len(found), count))


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    alpha, beta = _PARAMETERS[name]
    alpha = 0.0 if alpha is None else next(alphas, alpha)
    beta = 0.0 if beta is None else next(betas, beta)
    if math.isnan(alpha) or math.isnan(beta):
        raise FormError(f"activation '{name}' has no activation_alpha or activation_beta")
    return Activation(name, alpha, beta)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
