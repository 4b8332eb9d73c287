"""Writes a matrix product with transposed operands and its epilogue as one tensor expression."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from tvm import te, tirx, topi

# Under this name a function carries its ``GemmCompute``, for passes that compute it differently.
ATTRIBUTE = "tvm_ext.gemm"


@dataclass(frozen=True)
class Activation:
    """An activation by its Relax operator, with its numbers: clip has low and high, leakyrelu has
    the slope."""

    op_name: str
    numbers: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """The last word of the operator's name."""
        return self.op_name.rsplit(".", 1)[-1]


@dataclass(frozen=True)
class GemmCompute:
    """``activation(scale * op(A) @ op(B) + addend_scale * C)``, computed in ``out_dtype``.

    ``transpose_a`` and ``transpose_b`` say that an operand lies in memory with its last two axes
    swapped. Operands have two axes or more; leading axes broadcast as in ``relax.matmul``.
    ``columns`` says how many columns of the product are wanted, when B has more, or is given
    ``extra_columns`` of zeros.
    """

    transpose_a: bool
    transpose_b: bool
    out_dtype: str
    scale: float = 1.0
    addend_scale: float = 1.0
    activation: Activation | None = None
    columns: int | None = None
    extra_columns: int = 0

    def to_attribute(self) -> str:
        """The description as text, to be kept at the function."""
        return json.dumps(asdict(self))

    @classmethod
    def from_attribute(cls, text: str) -> "GemmCompute":
        """What ``to_attribute`` wrote."""
        given = json.loads(text)
        act = given.pop("activation")
        activation = Activation(act["op_name"], tuple(act["numbers"])) if act else None
        return cls(**given, activation=activation)

    def name(self, batched: bool, has_addend: bool) -> str:
        """The name of the kernel, such as ``batch_gemm_nt_scale_add_relu``."""
        layout = ("t" if self.transpose_a else "n") + ("t" if self.transpose_b else "n")
        words = ["batch_gemm" if batched else "gemm", layout]
        words += ["scale"] if self.scale != 1.0 else []
        words += ["add"] if has_addend else []
        words += [self.activation.name] if self.activation is not None else []
        return "_".join(words)

    def compute(self, a: te.Tensor, b: te.Tensor, *addend: te.Tensor) -> te.Tensor:
        """The tensor expression: one block that multiplies and accumulates, then elementwise ones.

        The accumulator has the type of the result, as in TVM's own lowering of ``relax.matmul``.
        """
        result = self._product(a, b)
        if self.columns is not None:
            result = cropped(result, self.columns)
        if self.scale != 1.0:
            result = topi.multiply(result, tirx.const(self.scale, self.out_dtype))
        for tensor in addend:
            if self.addend_scale != 1.0:
                tensor = topi.multiply(tensor, tirx.const(self.addend_scale, self.out_dtype))
            result = topi.add(result, tensor)
        return result if self.activation is None else _activate(result, self.activation)

    def _product(self, a: te.Tensor, b: te.Tensor) -> te.Tensor:
        rows, depth = _last_two(a, self.transpose_a)
        columns = _last_two(b, self.transpose_b)[1]
        batch = _batch_shape(list(a.shape[:-2]), list(b.shape[:-2]))
        if self.extra_columns:
            b = self._wider(b)
            columns += self.extra_columns
        k = te.reduce_axis((0, depth), name="k")

        def element(*index: tirx.Var) -> te.Tensor:
            *outer, i, j = index
            at_a = (k, i) if self.transpose_a else (i, k)
            at_b = (j, k) if self.transpose_b else (k, j)
            left = a(*_broadcast_index(a, outer), *at_a)
            right = b(*_broadcast_index(b, outer), *at_b)
            return te.sum(left.astype(self.out_dtype) * right.astype(self.out_dtype), axis=k)

        return te.compute((*batch, rows, columns), element, name="matmul")

    def _wider(self, b: te.Tensor) -> te.Tensor:
        ends = [0] * len(b.shape)
        ends[-2 if self.transpose_b else -1] = self.extra_columns
        return topi.nn.pad(b, [0] * len(ends), ends)


def cropped(tensor: te.Tensor, columns: int) -> te.Tensor:
    """The first ``columns`` elements along the last axis."""
    shape = [*tensor.shape[:-1], columns]
    return te.compute(shape, lambda *index: tensor(*index), name="crop")


def _last_two(tensor: te.Tensor, transposed: bool) -> tuple[tirx.Expr, tirx.Expr]:
    first, second = tensor.shape[-2:]
    return (second, first) if transposed else (first, second)


def _is_one(extent: tirx.Expr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


def _batch_shape(a: list[tirx.Expr], b: list[tirx.Expr]) -> list[tirx.Expr]:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    shape = list(longer)
    offset = len(longer) - len(shorter)
    for axis, extent in enumerate(shorter):
        if _is_one(shape[offset + axis]):
            shape[offset + axis] = extent
    return shape


def _broadcast_index(tensor: te.Tensor, outer: list[tirx.Var]) -> list[tirx.Expr]:
    own = tensor.shape[:-2]
    tail = outer[len(outer) - len(own) :]
    return [0 if _is_one(extent) else axis for extent, axis in zip(own, tail, strict=True)]


def _gelu(x: te.Tensor) -> te.Tensor:
    dtype = str(x.dtype)
    scaled = topi.multiply(x, tirx.const(0.5**0.5, dtype))
    # There is no half-precision erf to call.
    erf = topi.cast(topi.erf(topi.cast(scaled, "float32")), dtype)
    half = tirx.const(0.5, dtype)
    return topi.multiply(x, topi.add(topi.multiply(erf, half), half))


def _gelu_tanh(x: te.Tensor) -> te.Tensor:
    dtype = str(x.dtype)
    cubic = topi.add(
        topi.multiply(topi.multiply(x, x), tirx.const(0.044715, dtype)), tirx.const(1.0, dtype)
    )
    # 0.79788... is sqrt(2 / pi).
    inner = topi.multiply(topi.multiply(x, tirx.const(0.7978845608028654, dtype)), cubic)
    gate = topi.add(topi.tanh(inner), tirx.const(1.0, dtype))
    return topi.multiply(topi.multiply(x, tirx.const(0.5, dtype)), gate)


def _silu(x: te.Tensor) -> te.Tensor:
    return topi.multiply(x, topi.sigmoid(x))


# Operators that may end the kernel; what each needs beside its input are ``Activation.numbers``.
ACTIVATIONS: dict[str, Callable[..., te.Tensor]] = {
    "relax.nn.relu": topi.nn.relu,
    "relax.nn.gelu": _gelu,
    "relax.nn.gelu_tanh": _gelu_tanh,
    "relax.nn.silu": _silu,
    "relax.sigmoid": topi.sigmoid,
    "relax.tanh": topi.tanh,
    "relax.clip": topi.clip,
    "relax.nn.leakyrelu": topi.nn.leaky_relu,
}


def _activate(x: te.Tensor, activation: Activation) -> te.Tensor:
    return ACTIVATIONS[activation.op_name](x, *activation.numbers)
