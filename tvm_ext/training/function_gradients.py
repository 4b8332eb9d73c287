"""Gradients of calls: of kernels, and of private functions, as which If and Loop are imported.

``Gradient`` takes operators only. So a call of a function ``f`` is hidden from it as one of a
packed function of the name ``f/places``, with the places of the operands that are differentiated
by. The gradient of that is a call of the packed function ``f/places/gradient``, which is then a

    f_gradient(operands, gradients of the results) = gradients by the operands at these places

That function computes ``f`` anew. One that chooses has a gradient that chooses, and one that calls
itself, as a loop does, has a gradient that calls itself. The gradient of a kernel is a kernel. An
operator that TVM has no gradient for is the kernel that TVM makes of it.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.hardware.tvm_compat import set_type
from tvm_ext.relay_passes.expressions import operator_name, replaced
from tvm_ext.training.gradients.kernel_forms import gradient_of_form
from tvm_ext.training.gradients.kernels import DifferentiableKernel, NoGradient
from tvm_ext.training.gradients.registration import gradient_of

if TYPE_CHECKING:
    from tvm_ext.training.differentiate import Differentiation

_HIDDEN, _REGISTERED = "call_pure_packed", "FPrimalGradient"
_MARK, _GRADIENT = "/", "gradient"


class FunctionGradients:
    """The functions of a module, and the gradients of those whose calls were hidden."""

    def __init__(self, mod: tvm.IRModule, differentiation: "Differentiation") -> None:
        self._differentiation = differentiation
        self._names = {str(var.name_hint): var for var in mod.functions}
        self._functions = {name: mod[var] for name, var in self._names.items()}
        self._given = frozenset(self._names)

    def module(self) -> tvm.IRModule:
        """All that was added as well."""
        return tvm.IRModule({self._names[name]: one for name, one in self._functions.items()})

    def base(self) -> tvm.IRModule:
        """What was there, and kernels: TVM takes time for all that surrounds one function."""
        found = {
            self._names[name]: one
            for name, one in self._functions.items()
            if name in self._given or isinstance(one, tirx.PrimFunc)
        }
        return tvm.IRModule(found)

    def add_kernels(self, mod: tvm.IRModule) -> None:
        """Takes the kernels of a module that came from ``base`` among the functions."""
        for var, function in mod.functions.items():
            if isinstance(function, tirx.PrimFunc) and str(var.name_hint) not in self._functions:
                self._names[str(var.name_hint)] = var
                self._functions[str(var.name_hint)] = function

    def straight(self, bindings: Sequence[relax.Binding]) -> list[relax.Binding]:
        """The bindings with calls of new functions in place of each If."""
        return [
            relax.VarBinding(one.var, self._lifted(one.value))
            if isinstance(one, relax.VarBinding) and isinstance(one.value, relax.If)
            else one
            for one in bindings
        ]

    def hidden(self, value: relax.Expr, reached: Collection[relax.Var]) -> relax.Expr:
        """The value, where it calls what has a gradient here as a call of a packed function."""
        if not isinstance(value, relax.Call):
            return value
        if isinstance(value.op, tvm.ir.GlobalVar):
            name = _hidden_name(value.op, value.args, reached)
            return relax.op.call_pure_packed(name, *value.args, ty_args=value.ty)
        value = self._as_kernel(value)
        if operator_name(value) != "relax.call_tir" or len(value.args) > 2:
            return value
        operands, kernel = list(value.args[1].fields), self._functions[value.args[0].name_hint]
        name = _hidden_name(value.args[0], operands, reached)
        if gradient_of_form(kernel) is None:
            try:
                DifferentiableKernel.of(kernel, _places_of(name))
            except NoGradient:
                return value
        return relax.op.call_pure_packed(name, *operands, ty_args=value.ty)

    def _as_kernel(self, call: relax.Call) -> relax.Call:
        """A call of the kernel of an operator that has no gradient, where TVM makes one."""
        has_gradient = call.op.get_attr(_REGISTERED) is not None
        legalize = None if has_gradient else call.op.get_attr("FLegalize")
        if legalize is None:
            return call
        bb = relax.BlockBuilder(self.base())
        with bb.function("legalized", list(relax.analysis.free_vars(call))):
            made = bb.normalize(legalize(bb, call))
            bb.emit_func_output(bb.emit(made))
        self.add_kernels(bb.get())
        return made if isinstance(made, relax.Call) else call

    def shown(self, function: relax.Function) -> relax.Function:
        """The function with the calls that were hidden, and those of their gradients."""
        return _Shown(self).visit_expr(function)

    def function(self, var: tvm.ir.GlobalVar) -> tvm.ir.BaseFunc | None:
        """The function of a variable; None of one that is being written."""
        return self._functions.get(str(var.name_hint))

    def named(self, name: str) -> tvm.ir.GlobalVar:
        """The function, or the gradient, that a packed function stands for."""
        function, places, *is_gradient = name.split(_MARK)
        if not is_gradient:
            return self._names[function]
        own = f"{function}_{_GRADIENT}_{places}"
        if own not in self._names:
            self._differentiate(function, _places_of(name), own)
        return self._names[own]

    def _add(self, name: str, function: relax.Function) -> tvm.ir.GlobalVar:
        """The variable of a new function, or of one whose type was known before."""
        if name not in self._names:
            self._declare(name, function.ty)
        self._functions[name] = function
        return self._names[name]

    def _declare(self, name: str, ty: relax.Type) -> None:
        self._names[name] = tvm.ir.GlobalVar(name)
        set_type(self._names[name], ty)

    def _lifted(self, choice: relax.If) -> relax.Call:
        """The call of a function of what an If reads, whose branches call functions."""
        given = [choice.cond, *relax.analysis.free_vars(choice)]
        operands = list(dict.fromkeys(one for one in given if isinstance(one, relax.Var)))
        name = f"choice{len(self._names)}"
        params = [relax.Var(str(one.name), one.ty) for one in operands]
        own = dict(zip(operands, params, strict=True))
        sides = []
        for side, branch in (("then", choice.true_branch), ("else", choice.false_branch)):
            function = relax.Function(params, replaced(branch, own), choice.ty)
            var = self._add(f"{name}_{side}", relax.utils.copy_with_new_vars(function))
            sides.append(relax.Call(var, params))
        call = relax.Call(self._choice(name, params, own[choice.cond], sides), operands)
        return relax.BlockBuilder().normalize(call)

    def _choice(
        self,
        name: str,
        params: Sequence[relax.Var],
        condition: relax.Expr,
        sides: Sequence[relax.Call],
    ) -> tvm.ir.GlobalVar:
        """A new function that makes one of two calls."""
        bb = relax.BlockBuilder(self.base())
        with bb.function(name, list(params)):
            branches = []
            for call in sides:
                result = relax.Var("result", call.op.ty.ret)
                block = relax.BindingBlock([relax.VarBinding(result, call)])
                branches.append(relax.SeqExpr([block], result))
            bb.emit_func_output(bb.emit(relax.If(condition, *branches)))
        function = bb.get()[name].without_attr("global_symbol")
        return self._add(name, relax.utils.copy_with_new_vars(function))

    def _differentiate(self, name: str, places: Sequence[int], own: str) -> None:
        function = relax.utils.copy_with_new_vars(self._functions[name])
        fields = _fields_of(function.ret_ty)
        params = list(function.params)
        given = [relax.Var(f"given{n}", ty) for n, ty in enumerate(fields)]
        wanted = [params[place] for place in places]
        types = [param.ty for param in (*params, *given)]
        # Ahead of its body, which may call it.
        self._declare(own, relax.FuncType(types, relax.TupleType([one.ty for one in wanted])))
        choice = _only_choice(function)
        if choice is not None:
            self._differentiate_choice(own, function, choice, places, given)
            return
        differentiated = self._differentiation.of(self._product(function, given), wanted)
        bb = relax.BlockBuilder(self.base())
        with bb.function(own, [*params, *given]):
            with bb.dataflow():
                _, gradients = differentiated.emit(bb, {one: one for one in (*params, *given)})
                result = bb.emit_output(relax.Tuple(gradients))
            bb.emit_func_output(result)
        self._add(own, bb.get()[own].without_attr("global_symbol"))

    def _differentiate_choice(
        self,
        own: str,
        function: relax.Function,
        choice: relax.If,
        places: Sequence[int],
        given: Sequence[relax.Var],
    ) -> None:
        """The gradient of a function that chooses: it chooses between two gradients."""
        numbers, sides = "_".join(map(str, places)), []
        for side, branch in (("then", choice.true_branch), ("else", choice.false_branch)):
            one = relax.Function(function.params, branch, choice.ty)
            self._add(f"{own}_{side}", relax.utils.copy_with_new_vars(one))
            var = self.named(_MARK.join((f"{own}_{side}", numbers, _GRADIENT)))
            sides.append(relax.Call(var, [*function.params, *given]))
        self._choice(own, [*function.params, *given], choice.cond, sides)

    def _product(self, function: relax.Function, given: Sequence[relax.Var]) -> relax.Function:
        """The sum of the results times their gradients: its gradients are those asked for."""
        bb = relax.BlockBuilder(self.base())
        with bb.function("product", [*function.params, *given]):
            with bb.dataflow():
                for binding in self.straight(own_bindings(function)):
                    bb.emit_normalized(binding)
                results = results_of(bb, function.body.body)
                total = bb.emit_output(_sum_of_products(bb, results, given))
            bb.emit_func_output(relax.Tuple([total]))
        return bb.get()["product"]


def _hidden_name(
    function: tvm.ir.GlobalVar, operands: Sequence[relax.Expr], reached: Collection[relax.Var]
) -> str:
    places = [
        str(place)
        for place, operand in enumerate(operands)
        if operand in reached and "float" in str(getattr(operand.ty, "dtype", ""))
    ]
    return f"{function.name_hint}{_MARK}{'_'.join(places)}"


def _places_of(name: str) -> list[int]:
    return [int(place) for place in name.split(_MARK)[1].split("_") if place]


@gradient_of(_HIDDEN)
def _gradient(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    name, operands = str(call.args[0].global_symbol), call.args[1:]
    places, function, mod = _places_of(name), name.split(_MARK)[0], bb.get()
    if function in mod and isinstance(mod[function], tirx.PrimFunc):
        return [None, *_gradients_of_kernel(bb, y, operands, given, mod[function], places)]
    types = relax.TupleType([operands[place].ty for place in places])
    fields: Sequence[relax.Expr] = results_of(bb, given)
    packed = relax.op.call_pure_packed(
        f"{name}{_MARK}{_GRADIENT}", *operands, *fields, ty_args=types
    )
    made = bb.emit(packed)
    found: list[relax.Expr | None] = [None] * len(call.args)
    for number, place in enumerate(places):
        found[place + 1] = bb.emit(relax.TupleGetItem(made, number))
    return found


def _gradients_of_kernel(
    bb: relax.BlockBuilder,
    y: relax.Var,
    operands: Sequence[relax.Expr],
    given: relax.Var,
    kernel: tirx.PrimFunc,
    places: Sequence[int],
) -> list[relax.Expr | None]:
    known = gradient_of_form(kernel)
    if known is not None:
        gradient, form = known
        return list(gradient(bb, y, operands, given, form))
    made = DifferentiableKernel.of(kernel, places).emit(bb, operands, given)
    return [made.get(place) for place in range(len(operands))]


def is_hidden(call: relax.Call) -> bool:
    """Whether a call of a packed function stands for one of a function with a gradient."""
    return is_packed(call) and _MARK in str(call.args[0].global_symbol)


def is_packed(call: relax.Call) -> bool:
    """Whether a call is one of a packed function, hidden or not."""
    return operator_name(call) == f"relax.{_HIDDEN}"


def own_bindings(function: relax.Function) -> list[relax.Binding]:
    """The bindings of a function, without those in branches."""
    return [binding for block in function.body.blocks for binding in block.bindings]


def function_body(
    bb: relax.BlockBuilder, function: relax.Function, values: Sequence[relax.Expr]
) -> tuple[list[relax.Binding], relax.Expr]:
    """The function's own bindings with these values in its parameters, and its result."""
    copy = relax.utils.copy_with_new_vars(function)
    given = {
        param: value if isinstance(value, relax.Var) else bb.emit(value)
        for param, value in zip(copy.params, values, strict=True)
    }
    body = relax.Function(copy.params, copy.body, copy.ret_ty).bind_params(given).body
    return [binding for block in body.blocks for binding in block.bindings], body.body


def emit_function(
    bb: relax.BlockBuilder, function: relax.Function, values: Sequence[relax.Expr]
) -> relax.Expr:
    """Emits ``function_body``; returns the result."""
    bindings, result = function_body(bb, function, values)
    for binding in bindings:
        bb.emit_normalized(binding)
    return result


def _only_choice(function: relax.Function) -> relax.If | None:
    """The If that is all that a function does."""
    bindings = own_bindings(function)
    is_result = len(bindings) == 1 and function.body.body.same_as(bindings[0].var)
    choice = bindings[0].value if is_result else None
    return choice if isinstance(choice, relax.If) else None


def _fields_of(ty: relax.Type) -> list[relax.Type]:
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]


def results_of(bb: relax.BlockBuilder, value: relax.Expr) -> list[relax.Expr]:
    """The tensors that a value is."""
    if not isinstance(value.ty, relax.TupleType):
        return [value]
    if isinstance(value, relax.Tuple):
        return list(value.fields)
    return [bb.emit(relax.TupleGetItem(value, n)) for n in range(len(value.ty.fields))]


def _sum_of_products(
    bb: relax.BlockBuilder, values: Sequence[relax.Expr], factors: Sequence[relax.Expr]
) -> relax.Expr:
    """The sum over all elements of all values that are no integers."""
    total: relax.Expr | None = None
    for value, factor in zip(values, factors, strict=True):
        if "float" not in str(value.ty.dtype):
            continue
        part = bb.emit(relax.op.sum(bb.emit(relax.op.multiply(value, factor))))
        if total is None:
            total = part
        else:
            total = bb.emit(relax.op.add(total, bb.emit(relax.op.astype(part, total.ty.dtype))))
    return total


@mutator
class _Shown(PyExprMutator):
    def __init__(self, functions: FunctionGradients) -> None:
        super().__init__()
        self._own = functions

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        made = super().visit_call_(call)
        if operator_name(made) == "relax.add" and str(made.ty.dtype) == "bool":
            # TVM adds up what truth values have for gradients, which is zeros; no code adds these.
            return made.args[0]
        if not is_hidden(made):
            return made
        var = self._own.named(str(made.args[0].global_symbol))
        if isinstance(self._own.function(var), tirx.PrimFunc):
            return self.builder_.normalize(relax.call_tir(var, made.args[1:], _fields_of(made.ty)))
        return self.builder_.normalize(relax.Call(var, made.args[1:]))
