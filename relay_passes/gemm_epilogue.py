"""A matmul and what surrounds it: transposes, scales, addends and an activation.

``Surroundings`` recognises them in a graph; ``GemmCompute`` writes a matmul with transposed
operands and its epilogue as one tensor expression.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np
from ml_dtypes import finfo
from tvm import relax, te, tirx, topi
from tvm.ir import GenericConst
from tvm_ffi import structural_equal

from tvm_ext.relay_passes.binding_rewriter import GraphView

# Under this name a function carries its ``GemmCompute``, for passes that compute it differently.
ATTRIBUTE = "tvm_ext.gemm"


@dataclass(frozen=True)
class EpilogueActivation:
    """An activation by its Relax operator, with its numbers: clip has low and high, leakyrelu has
    the slope.
    """

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
    activation: EpilogueActivation | None = None
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
        activation = EpilogueActivation(act["op_name"], tuple(act["numbers"])) if act else None
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
        if self.activation is None:
            return result
        return ACTIVATIONS[self.activation.op_name](result, *self.activation.numbers)

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


# Operators that may end the kernel; what each needs beside its input are ``Activation.numbers``.
ACTIVATIONS: dict[str, Callable[..., te.Tensor]] = {
    "relax.nn.relu": topi.nn.relu,
    "relax.nn.gelu": _gelu,
    "relax.nn.gelu_tanh": _gelu_tanh,
    "relax.nn.silu": lambda x: topi.multiply(x, topi.sigmoid(x)),
    "relax.sigmoid": topi.sigmoid,
    "relax.tanh": topi.tanh,
    "relax.clip": topi.clip,
    "relax.nn.leakyrelu": topi.nn.leaky_relu,
}


# Recognises what stands around a matmul: transposes, scales, addends and activations.


Refuse = Callable[..., None]
FLOAT_TYPES = ("float16", "bfloat16", "float32", "float64")
# How far up a matmul is looked for: bias, residual, reshape, activation.
MAX_STEPS = 4
_SCALE_OPS = ("relax.multiply", "relax.divide")
_FOLLOWERS = (*_SCALE_OPS, "relax.add", *ACTIVATIONS)


@dataclass(frozen=True)
class Operand:
    """``scale * value``, with the last two axes of ``value`` swapped when ``transposed``.

    ``absorbed`` are the variables that stood between ``value`` and the matmul.
    """

    value: relax.Expr
    scale: float = 1.0
    transposed: bool = False
    absorbed: tuple[relax.Var, ...] = ()

    @property
    def constant(self) -> bool:
        """Whether the value is known at compile time."""
        return isinstance(self.value, GenericConst)

    @property
    def moves_data(self) -> bool:
        """Whether there is a transpose that would have to be done at run time."""
        return self.transposed and not self.constant


@dataclass(frozen=True)
class Epilogue:
    """``activation(scale * product + addend_scale * addend)``; ``variables`` are the values on the
    way, first the product and last the result; the first ``scale_steps`` steps are the scale.
    """

    variables: tuple[relax.Var, ...]
    scale: float = 1.0
    scale_steps: int = 0
    addend: Operand | None = None
    activation: EpilogueActivation | None = None

    @property
    def product(self) -> relax.Var:
        """The matmul at the start."""
        return self.variables[0]

    def longer(self, user: relax.Var) -> "Epilogue":
        """The same, ending with one step more."""
        return replace(self, variables=(*self.variables, user))

    def cut(self, steps: int) -> "Epilogue":
        """The same, ending after ``steps`` scale steps."""
        return Epilogue(self.variables[: steps + 1], self.scale, self.scale_steps)


class Surroundings:
    """Answers questions about the neighbours of values in one function."""

    def __init__(self, view: GraphView, refuse: Refuse) -> None:
        self.view = view
        self.refuse = refuse
        self._users: dict[relax.Var, list[relax.Var]] = {}
        # Constants are told apart by identity; comparing them would compare their contents.
        self._constant_uses: Counter[int] = Counter()
        for var, value in view.bindings().items():
            for argument in value.args[:] if isinstance(value, relax.Call) else ():
                if isinstance(argument, relax.Var):
                    self._users.setdefault(argument, []).append(var)
                elif isinstance(argument, GenericConst):
                    self._constant_uses[hash(argument)] += 1

    def shared(self, constant: GenericConst) -> bool:
        """Whether more than one call uses ``constant``."""
        return self._constant_uses[hash(constant)] > 1

    def only_user(self, var: relax.Var) -> relax.Var | None:
        """The variable bound to the only value that uses ``var``; None if there are more."""
        users = self._users.get(var, [])
        return users[0] if len(users) == 1 and self.view.uses(var) == 1 else None

    def scaled(self, expr: relax.Expr) -> tuple[relax.Expr, float] | None:
        """What is scaled and by how much, when ``expr`` is a value times or over a scalar."""
        call = self.view.call(expr, *_SCALE_OPS)
        if call is None:
            return None
        left, right = call.args
        factor = scalar_value(right, left)
        if factor is not None and call.op.name == "relax.divide":
            # A divisor below the normal numbers of float32 has no inverse to multiply with.
            return (left, 1.0 / factor) if abs(factor) > 1e-37 else None
        if factor is not None:
            return left, factor
        factor = scalar_value(left, right)
        return (right, factor) if factor is not None and call.op.name == "relax.multiply" else None

    def factors(self, var: relax.Var) -> tuple[list[relax.Expr], float, list[relax.Var]]:
        """The product ``var`` as values, one number, and the variables of inner products."""
        terms: list[relax.Expr] = []
        factor, inner, pending = 1.0, [], [var]
        while pending:
            expr = pending.pop()
            whole = expr.same_as(var) or self.view.uses(expr) == 1
            step = self.scaled(expr) if whole else None
            call = self.view.call(expr, "relax.multiply") if whole else None
            if step is not None:
                pending.append(step[0])
                factor *= step[1]
            elif call is not None:
                pending.extend(call.args)
            else:
                terms.append(expr)
                continue
            inner.append(expr)
        return terms, factor, inner[1:]

    def plus_one(self, expr: relax.Expr) -> relax.Expr | None:
        """What one is added to, when ``expr`` is such a sum."""
        call = self.view.call(expr, "relax.add")
        for value, one in () if call is None else (call.args, reversed(call.args)):
            if scalar_value(one, value) == 1.0:
                return value
        return None

    def operand(self, expr: relax.Expr, with_scale: bool = True) -> Operand:
        """Looks through the transposes and, ``with_scale``, the scales in front of a product."""
        found = Operand(expr)
        while isinstance(found.value, relax.Var):
            deeper = self._one_step(found, with_scale)
            if deeper is None:
                return found
            if self.view.uses(found.value) > 1:
                self.refuse("the prepared operand has another user", found.value)
                return found
            found = deeper
        return found

    def _one_step(self, operand: Operand, with_scale: bool) -> Operand | None:
        var = operand.value
        passed = (*operand.absorbed, var)
        call = self.view.call(var, "relax.permute_dims")
        if call is not None:
            if not swaps_last_two(call):
                axes = [int(axis) for axis in call.attrs.axes or ()]
                self.refuse(f"permute_dims {axes} moves more than the last two axes", var)
                return None
            return Operand(call.args[0], operand.scale, not operand.transposed, passed)
        step = self.scaled(var) if with_scale else None
        if step is not None:
            return Operand(step[0], operand.scale * step[1], operand.transposed, passed)
        call = self.view.call(var, *_SCALE_OPS) if with_scale else None
        if call is not None and any(isinstance(arg, GenericConst) for arg in call.args):
            self.refuse("the scale of an operand is not one finite number", var)
        return None

    def epilogue(self, product: relax.Var, taken: Callable[[relax.Var], bool]) -> Epilogue:
        """What follows ``product``, up to a value that has another user or is ``taken``."""
        found = self._scales(Epilogue((product,)))
        for extend in (self._addend, self._activation):
            user = self.only_user(found.variables[-1])
            if user is None or taken(user):
                return found
            found = extend(found, user)
        return found

    def note_shared(self, epilogue: Epilogue) -> None:
        """Records why ``epilogue`` ends, if more could follow but for another user."""
        last = epilogue.variables[-1]
        users = self._users.get(last, [])
        follows = any(self.view.call(user, *_FOLLOWERS) is not None for user in users)
        if self.view.uses(last) > 1 and follows and epilogue.activation is None:
            self.refuse("the result has another user, what follows stays outside", last)

    def from_matmul(self, expr: relax.Expr, steps: int = MAX_STEPS) -> bool:
        """Whether ``expr`` is a product, or up to ``steps`` elementwise steps and reshapes away."""
        if self.is_matmul(expr):
            return True
        call = self.view.call(expr, "relax.add", "relax.reshape", *ACTIVATIONS)
        if call is None or steps == 0:
            return False
        return any(self.from_matmul(arg, steps - 1) for arg in call.args[:2])

    def note_shared_scale(self, product: relax.Var) -> None:
        """Records that a scale of ``product`` cannot be folded, if another user is the reason."""
        users = self._users.get(product, [])
        if self.view.uses(product) > 1 and any(self.scaled(user) is not None for user in users):
            self.refuse("the matmul has another user, its scale is not folded", product)

    def is_matmul(self, expr: relax.Expr) -> bool:
        """Whether ``expr`` is a matmul, scaled or not."""
        step = self.scaled(expr)
        return self.view.call(expr if step is None else step[0], "relax.matmul") is not None

    def _scales(self, epilogue: Epilogue) -> Epilogue:
        user = self.only_user(epilogue.variables[-1])
        step = self.scaled(user) if user is not None else None
        if step is None or not step[0].same_as(epilogue.variables[-1]):
            return epilogue
        steps = epilogue.scale_steps + 1
        scaled = replace(epilogue, scale=epilogue.scale * step[1], scale_steps=steps)
        return self._scales(scaled.longer(user))

    def _addend(self, epilogue: Epilogue, user: relax.Var) -> Epilogue:
        call = self.view.call(user, "relax.add")
        if call is None:
            return epilogue
        result = epilogue.variables[-1]
        addend = call.args[1] if call.args[0].same_as(result) else call.args[0]
        if not same_shape(user, result):
            self.refuse("the addend enlarges the result", user)
            return epilogue
        step = self.scaled(addend)
        operand = Operand(addend)
        if step is not None and self.view.uses(addend) == 1:
            operand = Operand(step[0], step[1], False, (addend,))
        return replace(epilogue, addend=operand).longer(user)

    def _activation(self, epilogue: Epilogue, user: relax.Var) -> Epilogue:
        call = self.view.call(user, *ACTIVATIONS)
        numbers = None if call is None else _activation_numbers(call)
        if call is None or numbers is None:
            return epilogue
        activation = EpilogueActivation(call.op.name, numbers)
        return replace(epilogue, activation=activation).longer(user)


def scalar_value(expr: relax.Expr, beside: relax.Expr) -> float | None:
    """The finite number in a constant of one element that does not widen ``beside``, else None."""
    if not isinstance(expr, GenericConst) or expr.ty.ndim > beside.ty.ndim:
        return None
    array = expr.value.numpy()
    if array.size != 1 or not np.isfinite(array.astype("float64")).all():
        return None
    return float(array.reshape(-1)[0])


def swaps_last_two(call: relax.Call) -> bool:
    """Whether a ``permute_dims`` swaps the last two axes and leaves the others."""
    rank = call.args[0].ty.ndim
    if rank < 2:
        return False
    wanted = [*range(rank - 2), rank - 1, rank - 2]
    axes = call.attrs.axes
    given = list(reversed(range(rank))) if axes is None else [int(axis) % rank for axis in axes]
    return given == wanted


def same_shape(first: relax.Expr, second: relax.Expr) -> bool:
    """Whether two tensors are known to have the same shape, symbolic or not."""
    shapes = first.ty.shape, second.ty.shape
    if any(not isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return False
    return structural_equal(*shapes)


def folded_constant(constant: GenericConst, transposed: bool, factor: float) -> GenericConst | None:
    """``factor * constant``, with the last two axes swapped when ``transposed``, row-major.

    None when a value would overflow, or lose bits as a subnormal number.
    """
    array = constant.value.numpy()
    result = np.ascontiguousarray(np.swapaxes(array, -1, -2)) if transposed else array
    if factor != 1.0:
        wide = result.astype("float64") * factor
        limits = finfo(result.dtype)
        large = np.abs(wide)
        lost = (large < float(limits.tiny)) & (wide != 0.0)
        if lost.any() or not (large <= float(limits.max)).all():
            return None
        result = wide.astype(result.dtype)
    return relax.const(result, str(constant.ty.dtype))


def _activation_numbers(call: relax.Call) -> tuple[float, ...] | None:
    if call.op.name == "relax.nn.leakyrelu":
        return (float(call.attrs.alpha),)
    if call.op.name == "relax.clip":
        given = [getattr(limit, "value", None) for limit in call.args[1:]]
        limits = tuple(float(limit) for limit in given if isinstance(limit, int | float))
        return limits if len(limits) == len(given) else None
    return ()
