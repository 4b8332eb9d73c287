"""GemmFusion: every matmul with its scales, transposes and epilogue prepared to become one kernel.

Activations that a model spells out get their names first, and reshapes behind a matmul sink
below what is computed together with it.
"""

from collections.abc import Callable
from functools import partial
from math import isclose, pi, sqrt

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.tirx import IntImm

from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement, view_of
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.gemm_epilogue import (
    ACTIVATIONS,
    ATTRIBUTE,
    FLOAT_TYPES,
    Epilogue,
    GemmCompute,
    Operand,
    Surroundings,
    folded_constant,
    same_shape,
    scalar_value,
)
from tvm_ext.relay_passes.graph_pass import OUT_ELEMENTWISE_FUSABLE, graph_pass


class _MatmulRewriter(BindingRewriter):
    """Looks around the matmuls of each function."""

    pass_name = "GemmFusion"

    def start_function(self, func: relax.Function) -> None:
        super().start_function(func)
        self._around = Surroundings(self.view, self.refuse)

    def has_work(self, func: relax.Function) -> bool:
        """Whether there is a matmul, and what is looked for around it."""
        return super().has_work(func) and "relax.matmul" in view_of(func).operators


class ActivationNamer(_MatmulRewriter):
    """Names activations that several operators spell out, x being from a matmul.

    0.5 * x * (1 + erf(x / sqrt(2)))                              ->  gelu(x)
    0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))  ->  gelu_tanh(x)
    x * sigmoid(x)                                                ->  silu(x)
    """

    roots = frozenset({"relax.multiply"})

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        if operator_name(value) != "relax.multiply":
            return None
        terms, factor, inner = self._around.factors(var)
        if len(terms) != 2:
            return None
        for x, gate in (terms, reversed(terms)):
            if self.view.uses(gate) != 1 or not self._around.from_matmul(x):
                continue
            if factor == 1.0 and self._is_sigmoid(gate, x):
                return Replacement(relax.op.nn.silu(x), (*inner, gate), "silu named")
            passed = self._erf_gate(gate, x, factor)
            if passed is not None:
                return Replacement(relax.op.nn.gelu(x), (*inner, *passed), "gelu named")
            passed = self._tanh_gate(gate, x) if factor == 0.5 else None
            if passed is not None:
                return Replacement(relax.op.nn.gelu_tanh(x), (*inner, *passed), "gelu_tanh named")
        return None

    def _tanh_gate(self, gate: relax.Expr, x: relax.Expr) -> tuple[relax.Var, ...] | None:
        """The variables of ``gate`` when it is one plus the tangent of tanh-GELU."""
        tanh_var = self._around.plus_one(gate)
        tanh = None if tanh_var is None else self.view.call(tanh_var, "relax.tanh")
        polynomial = None if tanh is None else self._polynomial(tanh.args[0], x)
        if tanh is None or polynomial is None:
            return None
        passed = (*polynomial, tanh.args[0], tanh_var, gate)
        return passed if all(self.view.uses(var) == 1 for var in passed) else None

    def _polynomial(self, expr: relax.Expr, x: relax.Expr) -> tuple[relax.Var, ...] | None:
        """Variables below ``expr``, if it is ``sqrt(2 / pi) * (x + 0.044715 * x ** 3)``."""
        step = self._around.scaled(expr)
        total = None if step is None else self.view.call(step[0], "relax.add")
        if step is None or total is None or not isclose(step[1], sqrt(2 / pi), rel_tol=5e-3):
            return None
        for linear, cubic in (total.args, reversed(total.args)):
            cube = self._around.scaled(cubic)
            if (
                cube is None
                or not linear.same_as(x)
                or not isclose(cube[1], 0.044715, rel_tol=5e-3)
            ):
                continue
            inner = self._cube(cube[0], x)
            if inner is not None:
                return (*inner, cube[0], cubic, step[0])
        return None

    def _cube(self, expr: relax.Expr, x: relax.Expr) -> tuple[relax.Var, ...] | None:
        """Variables below ``expr``, if it is ``x`` to the third power or a product of three."""
        power = self.view.call(expr, "relax.power")
        if power is not None:
            is_cube = power.args[0].same_as(x) and scalar_value(power.args[1], x) == 3.0
            return () if is_cube else None
        product = self.view.call(expr, "relax.multiply")
        for factor, square in () if product is None else (product.args, reversed(product.args)):
            inner = self.view.call(square, "relax.multiply")
            if inner is not None and all(arg.same_as(x) for arg in (factor, *inner.args)):
                return (square,)
        return None

    def _is_sigmoid(self, gate: relax.Expr, x: relax.Expr) -> bool:
        call = self.view.call(gate, "relax.sigmoid")
        return call is not None and call.args[0].same_as(x)

    def _erf_gate(
        self, gate: relax.Expr, x: relax.Expr, factor: float
    ) -> tuple[relax.Var, ...] | None:
        """The variables of ``gate`` when it is ``1 + erf(x / sqrt(2))`` and ``factor`` a half."""
        erf_var = self._around.plus_one(gate)
        erf = None if erf_var is None else self.view.call(erf_var, "relax.erf")
        inner = None if erf is None else self._around.scaled(erf.args[0])
        if erf is None or inner is None or not inner[0].same_as(x):
            return None
        if self.view.uses(erf_var) != 1 or self.view.uses(erf.args[0]) != 1:
            return None
        tolerance = 1e-5 if str(x.ty.dtype) in ("float32", "float64") else 5e-3
        exact = isclose(inner[1], 1 / sqrt(2), rel_tol=tolerance) and factor == 0.5
        return (erf.args[0], erf_var, gate) if exact else None


class ReshapeSinker(_MatmulRewriter):
    """Lets an epilogue follow its matmul directly, x being from a matmul.

    A reshape is a view of the same memory, but operator fusion stops at it::

        act(reshape(x))       ->  reshape(act(x))
        reshape(x) + bias     ->  reshape(x + bias)
        reshape(x) + y        ->  reshape(x + reshape(y))
        reshape(reshape(x))   ->  reshape(x)
    """

    roots = frozenset({"relax.reshape", "relax.add", *ACTIVATIONS})

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        name = operator_name(value)
        if name == "relax.reshape":
            return self._reshape_twice(var, value)
        if name == "relax.add":
            return self._add_behind(var, value)
        if name in ACTIVATIONS:
            return self._activation_behind(var, value)
        return None

    def _reshape_twice(self, var: relax.Var, call: relax.Call) -> Replacement | None:
        first = self.view.call(call.args[0], "relax.reshape")
        if first is None or not self._around.from_matmul(first.args[0]):
            return None
        source = first.args[0]
        value = source if same_shape(source, var) else relax.op.reshape(source, call.args[1])
        return Replacement(value, (), "reshape of a reshape joined")

    def _activation_behind(self, var: relax.Var, call: relax.Call) -> Replacement | None:
        source = self._reshaped_matmul(call.args[0])
        if source is None:
            return None
        activated = relax.Call(call.op, [source, *call.args[1:]], call.attrs)
        return self._reshape_after(var, activated, call.args[0], "reshape moved behind")

    def _add_behind(self, var: relax.Var, call: relax.Call) -> Replacement | None:
        for reshaped, addend in (call.args, reversed(call.args)):
            source = self._reshaped_matmul(reshaped)
            if source is None or not same_shape(var, reshaped):
                continue
            moved = self._addend_like(source, reshaped, addend)
            if moved is not None:
                return self._reshape_after(
                    var, relax.op.add(source, moved), reshaped, "reshape moved behind the add"
                )
        return None

    def _reshape_after(
        self, var: relax.Var, value: relax.Call, reshaped: relax.Var, what: str
    ) -> Replacement:
        result = relax.op.reshape(self.bind(value, var), var.ty.shape)
        return Replacement(result, (reshaped,), what)

    def _addend_like(
        self, source: relax.Expr, reshaped: relax.Expr, addend: relax.Expr
    ) -> relax.Expr | None:
        """``addend``, so that it can be added to ``source`` instead; None when it cannot."""
        if same_shape(addend, reshaped):
            return self.bind(relax.op.reshape(addend, source.ty.shape), reshaped)
        if not isinstance(addend, GenericConst):
            return None
        array = addend.value.numpy()
        if array.size == 1:
            return relax.const(np.reshape(array, ()), str(addend.ty.dtype))
        last = source.ty.shape.values[-1], reshaped.ty.shape.values[-1]
        if not all(isinstance(extent, IntImm) and int(extent) == array.size for extent in last):
            return None
        if array.shape[-1] != array.size:
            return None
        return relax.const(np.reshape(array, -1), str(addend.ty.dtype))

    def _reshaped_matmul(self, expr: relax.Expr) -> relax.Expr | None:
        """The source of the reshape ``expr``, if it is from a product and both have one user."""
        call = self.view.call(expr, "relax.reshape")
        if call is None or not self._around.from_matmul(call.args[0]):
            return None
        shapes = expr.ty.shape, call.args[0].ty.shape
        if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
            return None
        if self.view.uses(expr) != 1 or self.view.uses(call.args[0]) != 1:
            self.refuse("a reshape behind the matmul has another user", expr)
            return None
        return call.args[0]


@graph_pass
class GemmFusion:
    """Turns ``act(alpha * op(A) @ op(B) + beta * C)`` into what becomes one kernel.

    Before::  s = multiply(x, 0.125); t = permute_dims(W, [1, 0]); m = matmul(s, t); y = add(m, c)
    After::   m = matmul(x, W'); y = add(m, c)              with the constant W' = 0.125 * W.T
    Before::  t = permute_dims(k, [0, 2, 1]); m = matmul(q, t); s = divide(m, 8.0); y = add(s, c)
    After::   y = call_tir(batch_gemm_nt_scale_add, (q, k, c))
    Before::  s = multiply(q, 0.125); y = matmul(s, k)      with neither q nor k constant
    After::   m = matmul(q, k); y = multiply(m, 0.125)      which operator fusion joins

    Constants take up scales and transposes at compile time. A call of a TensorIR function is made
    only where a run-time transpose would need a kernel of its own; it takes in the scale, one
    addend and one activation that follow. Else operators stay operators: operator fusion joins
    them, and later graph passes can read them. Before that, gelu, gelu_tanh and silu that are
    spelled out get their names, and reshapes move behind activations and addends. Multiplications
    change order, so results may differ by rounding. Symbolic dimensions, the summed one as well,
    stay symbolic.

    Leaves alone: a prepared operand or an inner result with another user; permute_dims of other
    axes than the last two (heads of attention); integer types; operands of different types; scales
    that are not one finite constant; scales before a float16 accumulation unless a constant takes
    them, as they may be there to avoid overflow; addends that enlarge the result; vectors and
    unknown shapes where a function would be needed. A constant with several users, or one that
    would overflow or lose bits, is not scaled; the scale then follows the product.

    Run after: FoldConstantCalls. Run before: LegalizeOps and FuseOps.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The module with the products prepared; ``mod`` itself when there are none."""
        named = ActivationNamer().run(mod)
        sunk = ReshapeSinker().run(named)
        if sunk is not named:
            # Joined reshapes may leave a variable bound to another one.
            sunk = relax.transform.CanonicalizeBindings()(sunk)
        return _GemmRewriter().run(sunk)


class _GemmRewriter(_MatmulRewriter):
    def __init__(self) -> None:
        # The result of an epilogue that ends further down, and what to put there.
        self._planned: dict[relax.Var, Callable[[], Replacement]] = {}
        self._inside: set[relax.Var] = set()
        self._transposed: dict[int, tuple[GenericConst, relax.Expr]] = {}

    def start_function(self, func: relax.Function) -> None:
        super().start_function(func)
        self._planned, self._inside = {}, set()

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        if var in self._planned:
            return self._planned[var]()
        name = "" if var in self._inside else operator_name(value)
        if name == "relax.add":
            return self._fold_addend(var, value)
        return self._product(var, value) if name == "relax.matmul" else None

    def _product(self, var: relax.Var, call: relax.Call) -> Replacement | None:
        a, b = self._operands(call)
        types = {str(operand.ty.dtype) for operand in call.args}
        if len(types) > 1 or types.isdisjoint(FLOAT_TYPES):
            if a.absorbed or b.absorbed:
                found = " and ".join(sorted(types))
                self.refuse(f"operands are {found}, not of one floating point type", var)
            return None
        if str(var.ty.dtype) == "float16" and self._prepared(a, b, a.scale * b.scale)[2] != 1.0:
            self.refuse("a scale before a float16 accumulation may be what avoids overflow", var)
            a, b = self._operands(call, with_scale=False)
        epilogue = self._around.epilogue(var, self._planned.__contains__)
        if a.moves_data or b.moves_data:
            return self._plan_function(a, b, epilogue)
        return self._plan_operators(a, b, epilogue)

    def _operands(self, call: relax.Call, with_scale: bool = True) -> tuple[Operand, Operand]:
        a, b = (self._around.operand(operand, with_scale) for operand in call.args)
        return a, b

    def _plan_operators(self, a: Operand, b: Operand, epilogue: Epilogue) -> Replacement | None:
        """Keeps the operators: constants take what they can, one scale may follow the product."""
        absorbed = (*a.absorbed, *b.absorbed)
        own, steps = a.scale * b.scale, epilogue.scale_steps
        if steps > 0 and str(epilogue.product.ty.dtype) == str(a.value.ty.dtype):
            # In a wider result the scale is exact, in narrower operands it would not be.
            new_a, new_b, left = self._prepared(a, b, own * epilogue.scale)
            if left == 1.0:
                return self._plan(epilogue.cut(steps), absorbed, partial(_matmul, new_a, new_b))
        if a.constant or b.constant:
            self._around.note_shared_scale(epilogue.product)
        new_a, new_b, left = self._prepared(a, b, own)
        if left != 1.0:
            build = partial(self._scaled_matmul, new_a, new_b, own * epilogue.scale)
            return self._plan(epilogue.cut(steps), absorbed, build)
        if not absorbed:
            return None
        return self._plan(epilogue.cut(0), absorbed, partial(_matmul, new_a, new_b))

    def _scaled_matmul(
        self, a: relax.Expr, b: relax.Expr, scale: float, epilogue: Epilogue
    ) -> relax.Expr:
        product = self.bind(_matmul(a, b, epilogue), epilogue.product)
        return relax.op.multiply(product, relax.const(scale, str(epilogue.product.ty.dtype)))

    def _plan_function(self, a: Operand, b: Operand, epilogue: Epilogue) -> Replacement | None:
        """One TensorIR function that reads the operands as they lie in memory."""
        tensors = [epilogue.product, a.value, b.value]
        if any(not isinstance(tensor.ty.shape, relax.ShapeExpr) for tensor in tensors):
            self.refuse("a shape is unknown, even as symbols", epilogue.product)
            return None
        if min(tensor.ty.ndim for tensor in tensors) < 2:
            self.refuse("an operand is a vector", epilogue.product)
            return None
        self._around.note_shared(epilogue)
        same_type = str(epilogue.product.ty.dtype) == str(a.value.ty.dtype)
        scale = a.scale * b.scale * epilogue.scale
        new_a, new_b, left = self._prepared(a, b, scale if same_type else 1.0)
        addends = [] if epilogue.addend is None else [epilogue.addend]
        kernel = GemmCompute(
            transpose_a=a.moves_data,
            transpose_b=b.moves_data,
            out_dtype=str(epilogue.product.ty.dtype),
            scale=left if same_type else scale,
            addend_scale=addends[0].scale if addends else 1.0,
            activation=epilogue.activation,
        )
        inputs = [new_a, new_b, *(addend.value for addend in addends)]
        passed = tuple(var for operand in (a, b, *addends) for var in operand.absorbed)
        return self._plan(epilogue, passed, partial(self._function, kernel, inputs))

    def _function(
        self, kernel: GemmCompute, inputs: list[relax.Expr], epilogue: Epilogue
    ) -> relax.Expr:
        name = kernel.name(batched=inputs[1].ty.ndim > 2, has_addend=len(inputs) > 2)
        return self.builder.call_te(
            kernel.compute,
            *inputs,
            primfunc_name_hint=name,
            primfunc_attrs={
                ATTRIBUTE: kernel.to_attribute(),
                "op_pattern": OUT_ELEMENTWISE_FUSABLE,
            },
        )

    def _plan(
        self,
        epilogue: Epilogue,
        passed: tuple[relax.Var, ...],
        build: Callable[[Epilogue], relax.Expr],
    ) -> Replacement | None:
        """Replaces the last variable of ``epilogue``: now, or when the walk comes to it."""
        *inner, end = epilogue.variables

        def make() -> Replacement:
            value = build(epilogue)
            return Replacement(value, (*passed, *inner), _describe(value))

        if not inner:
            return make()
        self._inside.update(inner)
        self._planned[end] = make
        return None

    def _prepared(
        self, a: Operand, b: Operand, scale: float
    ) -> tuple[relax.Expr, relax.Expr, float]:
        """The operands with constants ready for use, and the scale that is left to apply."""
        new_b, left = self._taking(b, scale)
        new_a, left = self._taking(a, left)
        return new_a, new_b, left

    def _taking(self, operand: Operand, scale: float) -> tuple[relax.Expr, float]:
        constant = operand.value
        if not operand.constant:
            return constant, scale
        if scale != 1.0 and not self._around.shared(constant):
            folded = folded_constant(constant, operand.transposed, scale)
            if folded is not None:
                return folded, 1.0
        return (self._transpose(constant) if operand.transposed else constant), scale

    def _transpose(self, constant: GenericConst) -> relax.Expr:
        # Products that share a constant go on sharing it; the original is kept for its identity.
        key = hash(constant)
        if key not in self._transposed:
            self._transposed[key] = (constant, folded_constant(constant, True, 1.0))
        return self._transposed[key][1]

    def _fold_addend(self, var: relax.Var, call: relax.Call) -> Replacement | None:
        """``product + beta * C`` with constant C: computes ``beta * C`` now."""
        for product, addend in (call.args, reversed(call.args)):
            step = self._around.scaled(addend)
            if step is None or not self._around.is_matmul(product):
                continue
            constant, beta = step
            if not isinstance(constant, GenericConst) or str(var.ty.dtype) not in FLOAT_TYPES:
                continue
            folded = folded_constant(constant, False, beta)
            if folded is not None:
                value = relax.op.add(product, folded)
                return Replacement(value, (addend,), "folded the scale of the addend")
        return None


def _matmul(a: relax.Expr, b: relax.Expr, epilogue: Epilogue) -> relax.Expr:
    dtype = str(epilogue.product.ty.dtype)
    return relax.op.matmul(a, b, out_dtype=None if dtype == str(a.ty.dtype) else dtype)


def _describe(value: relax.Call) -> str:
    if value.op.name == "relax.call_tir":
        return f"one function {value.args[0].name_hint}"
    if value.op.name == "relax.multiply":
        return "scale moved behind the matmul"
    return "constant operand took up scale or transpose"
