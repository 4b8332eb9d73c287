"""Constants that kernels read: marks them for the templates, packs them as the templates ask."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.compiler.compile_context import current_compilation
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.spans import relax_bindings, relax_functions, with_functions
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE, nodes
from tvm_ext.tir_schedules.packing import Packed
from tvm_ext.tir_schedules.schedule_kernels import ScheduleChoice

_CALL_TIR = tvm.ir.Op.get("relax.call_tir")


@graph_pass
class MarkConstantParameters:
    """Notes on every kernel which of its parameters are constants wherever it is called.

    Templates ask for weights in another order only where the note allows it.

    Leaves alone: kernels that some other function or kernel names as well, not in a call.

    Run after: legalisation and fusion. Run before: ScheduleKernels.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns the module with the notes."""
        return mark_constant_parameters(mod)


@graph_pass
class PackWeights:
    """Puts each constant in the order in which its kernel reads it.

    Leaves alone: constants whose kernels read them as they are.

    Run after: ScheduleKernels, whose choices say which constants those are; without any choice
    nothing changes.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when no kernel asks for a packed constant."""
        context = current_compilation()
        return mod if context is None else pack_weights(mod, context.choices)


def mark_constant_parameters(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with the notes of ``MarkConstantParameters``."""
    always = {
        name: set.intersection(*map(_constant_positions, calls))
        for name, calls in kernel_arguments(mod).items()
    }
    changed = {
        global_var: func.with_attr(CONSTANTS_ATTRIBUTE, positions)
        for global_var, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc)
        and (positions := sorted(always.get(str(global_var.name_hint), ())))
    }
    return with_functions(mod, changed)


def kernel_arguments(mod: tvm.IRModule) -> dict[str, list[Sequence[relax.Expr]]]:
    """By kernel name: the inputs that each call gives it.

    Without kernels that something else names as well: it may give them anything.
    """
    found: dict[str, list[Sequence[relax.Expr]]] = defaultdict(list)
    for binding in relax_bindings(mod):
        call = binding.value
        if isinstance(call, relax.Call) and _CALL_TIR.same_as(call.op):
            found[str(call.args[0].name_hint)].append(call.args[1].fields)
    named = Counter(
        str(var.name_hint)
        for func in mod.functions.values()
        for var in nodes(func, tvm.ir.GlobalVar)
    )
    return {name: calls for name, calls in found.items() if named[name] == len(calls)}


def _constant_positions(inputs: Sequence[relax.Expr]) -> set[int]:
    return {place for place, one in enumerate(inputs) if isinstance(one, GenericConst)}


def pack_weights(mod: tvm.IRModule, choices: Mapping[str, ScheduleChoice]) -> tvm.IRModule:
    """``mod`` with each constant in the order in which its kernel reads it.

    ``choices`` says by kernel name how each kernel was scheduled.
    """
    packed = {name: choice.packed for name, choice in choices.items() if choice.packed is not None}
    if not packed:
        return mod
    # A kernel's name carries the types of its parameters: a packed one gets a new name object.
    others = {v: f for v, f in mod.functions.items() if str(v.name_hint) not in packed}
    packer = _WeightPacker(tvm.IRModule(others, attrs=mod.attrs), packed)
    for global_var, func in mod.functions.items():
        if str(global_var.name_hint) in packed:
            packer.add_kernel(str(global_var.name_hint), func)
    for global_var, func in relax_functions(mod).items():
        packer.builder_.update_func(global_var, packer.visit_expr(func))
    return packer.builder_.get()


@mutator
class _WeightPacker(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, packed: Mapping[str, Packed]) -> None:
        super().__init__(mod)
        self.packed = packed
        self.kernels: dict[str, tvm.ir.GlobalVar] = {}
        self.constants: dict[tuple[GenericConst, Packed], relax.Expr] = {}

    def add_kernel(self, name: str, func: tirx.PrimFunc) -> None:
        self.kernels[name] = self.builder_.add_func(func, name)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not _CALL_TIR.same_as(call.op):
            return super().visit_call_(call)
        name = str(call.args[0].name_hint)
        operand = self.packed.get(name)
        if operand is None:
            return super().visit_call_(call)
        arguments = list(call.args[1].fields)
        arguments[operand.parameter] = self._pack(arguments[operand.parameter], operand)
        changed = relax.Call(
            call.op,
            [self.kernels[name], relax.Tuple(arguments), *call.args[2:]],
            call.attrs,
            call.ty_args,
            call.span,
        )
        return super().visit_call_(changed)

    def _pack(self, constant: GenericConst, operand: Packed) -> relax.Expr:
        key = (constant, replace(operand, parameter=0))
        if key not in self.constants:
            array = operand.pack(constant.value.numpy())
            self.constants[key] = relax.const(array, str(constant.value.dtype))
        return self.constants[key]
