"""A second way into a program: with arrays of the caller's that results are written to."""

from collections.abc import Collection, Mapping

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.spans import bindings_of, relax_functions, with_functions
from tvm_ext.report.records import WITH_OUT_PARAMS

# The function's attribute with the places of the results that are parameters.
_PLACES = "out_params"
_ALLOCATION = "relax.builtin.alloc_tensor"
# How TVM's names of functions on numbers begin.
_OF_SIZES = ("prim.", "tirx.")


@graph_pass
class ResultsToOutParams:
    """Adds a function like ``main`` that takes its results' memory as parameters behind the inputs.

    Before: ``main(x): y = alloc_tensor(shape, ...); kernel(x, y); return y``
    After:  the same beside ``main_with_out_params(x, y): kernel(x, y); return y``

    Leaves alone: programs for GPUs, and those with a function within a size, which TVM cannot copy.
    What is an input's, a weight's or another result's memory, or of a size that is neither known
    nor an input's, stays a result alone.

    Run after: ShareStorage. Run before: LowerAllocTensor.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself where no result can be a parameter."""
        if current_cpu() is None or has_functions_in_sizes(mod["main"]):
            return mod
        try:
            main = relax.utils.copy_with_new_vars(mod["main"])
        except tvm.error.InternalError:
            return mod
        allocations = allocations_of_results(main)
        if not allocations:
            return mod
        made = list(allocations.values())
        params = [*main.params, *made]
        attrs = {_PLACES: list(allocations), "global_symbol": WITH_OUT_PARAMS}
        function = relax.Function(
            params, _without(main.body, made), main.ret_ty, main.is_pure
        ).with_attrs({**dict(main.attrs.items()), **attrs})
        return with_functions(mod, {tvm.ir.GlobalVar(WITH_OUT_PARAMS): function})


def out_params(mod: tvm.IRModule) -> list[int]:
    """The places of the results that are parameters of the function with out-parameters."""
    for global_var, func in relax_functions(mod).items():
        if global_var.name_hint == WITH_OUT_PARAMS:
            return [int(place) for place in func.attrs[_PLACES]]
    return []


def has_functions_in_sizes(main: relax.Function) -> bool:
    """Whether a size calls a function, such as a choice (``if_then_else``) or a ceiling.

    TVM copies no program with such a size, and warns.
    """
    found: list[tvm.ir.Call] = []
    tvm_ffi.structural_walk(main, (tvm.ir.Call, found.append))
    names = (call.op.name for call in found if isinstance(call.op, tvm.ir.Op))
    return any(name.startswith(_OF_SIZES) for name in names)


def allocations_of_results(main: relax.Function) -> dict[int, relax.Var]:
    """What allocates each result, by its place, where that may become a parameter."""
    values = {binding.var: binding.value for binding in bindings_of(main)}
    result = _resolved(main.body.body, values)
    result = values.get(result, result)
    fields = result.fields if isinstance(result, relax.Tuple) else [main.body.body]
    inputs = _sizes_of_inputs(main)
    found: dict[int, relax.Var] = {}
    for place, field in enumerate(fields):
        made = _resolved(field, values)
        if made in found.values() or operator_name(values.get(made)) != _ALLOCATION:
            continue
        if all(isinstance(s, tirx.IntImm) or s in inputs for s in values[made].args[0].values):
            found[place] = made
    return found


def _resolved(value: relax.Expr, values: Mapping[relax.Var, relax.Expr]) -> relax.Expr:
    """The variable that ``value`` is another name of, also as a field of a tuple."""
    while isinstance(value, relax.Var):
        known = values.get(value)
        if isinstance(known, relax.TupleGetItem):
            whole = values.get(_resolved(known.tuple_value, values))
            known = whole.fields[known.index] if isinstance(whole, relax.Tuple) else None
        if not isinstance(known, relax.Var):
            break
        value = known
    return value


def _sizes_of_inputs(main: relax.Function) -> set[tirx.Var]:
    """Variables that are a size of an input as they stand."""
    shapes = [getattr(param.ty, "shape", None) for param in main.params]
    return {
        size
        for shape in shapes
        if isinstance(shape, relax.ShapeExpr)
        for size in shape.values
        if isinstance(size, tirx.Var)
    }


def _without(body: relax.SeqExpr, defined: Collection[relax.Var]) -> relax.SeqExpr:
    """The body without the bindings that define these variables, which are parameters now."""
    blocks = [
        relax.BindingBlock([binding for binding in block.bindings if binding.var not in defined])
        for block in body.blocks
    ]
    return relax.SeqExpr(blocks, body.body)
