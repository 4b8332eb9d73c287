"""Where an operator came from: names of original nodes, carried by the spans of Relax variables.

Passes of TVM keep a variable, or copy its span, when they replace the value bound to it; a call
loses its own span as soon as it is legalised. So the variable is what carries the names, from the
imported graph down to the call of the finished kernel.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import tvm
from tvm import relax
from tvm.ir.base import SequentialSpan, SourceName, Span
from tvm.relax.expr_functor import PyExprMutator, mutator


def span_of(names: Iterable[str]) -> Span | SequentialSpan | None:
    """The span that carries ``names``, in order and each once; None for no names."""
    unique = tuple(dict.fromkeys(name for name in names if name))
    spans = [Span(SourceName(name), 0, 0, 0, 0) for name in unique]
    if len(spans) < 2:
        return spans[0] if spans else None
    return SequentialSpan(spans)


def origins_of(*variables: relax.Var) -> tuple[str, ...]:
    """Names of the original nodes that the variables carry, in order and each once."""
    names: dict[str, None] = {}
    for variable in variables:
        span = variable.span
        parts = span.spans if isinstance(span, SequentialSpan) else [span]
        names.update((str(part.source_name.name), None) for part in parts if part is not None)
    return tuple(names)


def describe_origin(*variables: relax.Var) -> str:
    """One readable place for a report: the original nodes, or the variable when none is known."""
    return " + ".join(origins_of(*variables)) or " + ".join(str(v.name) for v in variables)


def retyped_var(variable: relax.Var, ty: relax.Type, names: Iterable[str]) -> relax.Var:
    """A new variable of the same kind and name, with type ``ty`` and the origin ``names``."""
    kind = relax.DataflowVar if isinstance(variable, relax.DataflowVar) else relax.Var
    return kind(variable.name, ty, span_of(names))


def write_origins(mod: tvm.IRModule, origins: Mapping[relax.Var, Sequence[str]]) -> tvm.IRModule:
    """A module in which the bound variables in ``origins`` carry these names; ``mod`` when none."""
    if not origins:
        return mod
    writer = _OriginWriter(mod, origins)
    for global_var, func in relax_functions(mod).items():
        writer.builder_.update_func(global_var, writer.visit_expr(func))
    return writer.builder_.get()


def relax_functions(mod: tvm.IRModule) -> dict[tvm.ir.GlobalVar, relax.Function]:
    """The functions of a module that are no kernels."""
    return {var: func for var, func in mod.functions.items() if isinstance(func, relax.Function)}


def with_functions(
    mod: tvm.IRModule, changed: Mapping[tvm.ir.GlobalVar, tvm.ir.BaseFunc]
) -> tvm.IRModule:
    """A module with these functions in place of its own; ``mod`` itself where there are none."""
    if not changed:
        return mod
    return tvm.IRModule({**dict(mod.functions.items()), **changed}, attrs=mod.attrs)


def bindings_of(func: relax.Function) -> list[relax.VarBinding]:
    """All variable bindings below a function in program order, branches ahead of their If."""
    return [found for found in all_bindings_of(func) if isinstance(found, relax.VarBinding)]


def relax_bindings(mod: tvm.IRModule) -> Iterator[relax.VarBinding]:
    """All variable bindings of all Relax functions, in the order of a run.

    Those of a function that another one calls (a branch, an iteration of a loop) come once, before
    its first call.
    """
    functions = {str(var.name_hint): func for var, func in relax_functions(mod).items()}
    entered: set[str] = set()

    def inside(name: str) -> Iterator[relax.VarBinding]:
        if name in entered or name not in functions:
            return
        entered.add(name)
        for binding in bindings_of(functions[name]):
            callee = binding.value.op if isinstance(binding.value, relax.Call) else None
            if isinstance(callee, tvm.ir.GlobalVar):
                yield from inside(str(callee.name_hint))
            yield binding

    for name in ("main", *functions):
        yield from inside(name)


def all_bindings_of(func: relax.Function) -> list[relax.Binding]:
    """As ``bindings_of``, with the casts to a shape among them."""
    found: list[relax.Binding] = []
    _collect_bindings(func.body, found)
    return found


def _collect_bindings(body: relax.Expr, bindings: list[relax.Binding]) -> None:
    if not isinstance(body, relax.SeqExpr):
        return
    # A slice is a list: element by element, TVM's arrays take several times as long.
    for binding in (binding for block in body.blocks[:] for binding in block.bindings[:]):
        value = binding.value
        if isinstance(value, relax.If):
            _collect_bindings(value.true_branch, bindings)
            _collect_bindings(value.false_branch, bindings)
        elif isinstance(value, relax.Function):
            _collect_bindings(value.body, bindings)
        bindings.append(binding)


@mutator
class _OriginWriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, origins: Mapping[relax.Var, Sequence[str]]) -> None:
        super().__init__(mod)
        self.origins = origins

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        names = self.origins.get(binding.var)
        if names is None:
            super().visit_var_binding_(binding)
            return
        value = self.visit_expr(binding.value)
        var = retyped_var(binding.var, binding.var.ty, names)
        self.builder_.emit_normalized(relax.VarBinding(var, value))
        self.set_var_remap(binding.var, var)
