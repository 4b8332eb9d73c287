"""DirectKernelCalls: kernels that run one after the other are called by one function."""

from dataclasses import replace

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.passes.calls_of_kernels import (
    Argument,
    KernelArguments,
    TensorPart,
    calls_of_kernels,
)
from tvm_ext.passes.results_to_out_params import has_functions_in_sizes
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.spans import relax_functions, with_functions
from tvm_ext.report.records import WITH_OUT_PARAMS, as_machine_code
from tvm_ext.tir_schedules.cpu.tensor_start import TENSOR_START

_STORAGE = "relax.memory.alloc_storage"
_ALLOCATION = "relax.memory.alloc_tensor"
_OWN_ALLOCATION = "relax.builtin.alloc_tensor"
_RESHAPE = "relax.reshape"
_VIEW = "relax.memory.view"
_FROM_ZERO = "relax.memory.ensure_zero_offset"
_PARTS_OF_TENSORS = (_RESHAPE, _VIEW, _FROM_ZERO)

# Kernels of one function, so that LLVM has few instructions of it at a time.
_MOST_KERNELS = 64


@graph_pass
class DirectKernelCalls:
    """Adds a function like ``main`` whose kernels are called by one another function directly.

    Before: ``a = alloc_tensor(storage, 0, (n, 4))``, ``k1(x, a)``,
            ``b = alloc_tensor(storage, n * 16, (n, 8))``, ``tensor_start(b)``, ``k2(a, w, b)``, ...
    After:  beside it ``calls(x, w, whole storage, n)``, a function of machine code that lays out
            ``a`` and ``b`` on its stack and calls ``k1`` and ``k2``

    TVM's virtual machine makes an object of each tensor and each shape in every run, and computes
    each size anew: half a microsecond for a kernel with open sizes. ``main`` stays as it is for
    profiles and for finding out where an error came from; the function with out-parameters is
    replaced.

    Leaves alone: programs for GPUs; functions with a size that TVM cannot copy; calls of anything
    but kernels, and sizes that are found in the middle of a run, which end a row of calls.

    Run after: ResultsToOutParams, ShareStorage. Run before: LowerAllocTensor.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself where no kernels are called one after the other."""
        names = {str(variable.name_hint) for variable in mod.functions}
        if current_cpu() is None or as_machine_code("main") in names:
            return mod
        made: dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc] = {}
        builder = relax.BlockBuilder(mod)
        for variable, func in relax_functions(mod).items():
            name = str(variable.name_hint)
            if name not in ("main", WITH_OUT_PARAMS):
                continue
            copied = _own_copy(func) if name == "main" else func
            if copied is None:
                continue
            direct = _Writer(builder, mod).written(copied)
            if direct is None:
                continue
            if name == WITH_OUT_PARAMS:
                made[variable] = direct
            else:
                other = as_machine_code(name)
                made[tvm.ir.GlobalVar(other)] = direct.with_attr("global_symbol", other)
        return with_functions(builder.get(), made) if made else mod


def _own_copy(func: relax.Function) -> relax.Function | None:
    """The function with variables of its own; None where TVM cannot copy it."""
    if has_functions_in_sizes(func):
        return None
    try:
        return relax.utils.copy_with_new_vars(func)
    except tvm.error.InternalError:
        return None


class _Variables:
    """What the variables of a function are, and which of them the program itself needs."""

    def __init__(self, func: relax.Function, mod: tvm.IRModule) -> None:
        self._mod = mod
        self.bindings = [b for block in func.body.blocks for b in block.bindings]
        self.values = {b.var: b.value for b in self.bindings if isinstance(b, relax.VarBinding)}
        self._outside: set[relax.Var] = set()
        for binding in self.bindings:
            if not self.is_part(binding) and not self.is_kernel(binding.value):
                self._use(binding.value)
        self._use(func.body.body)

    def is_outside(self, variable: relax.Var) -> bool:
        """Whether a tensor has to be an object of the program's."""
        root = self.root(variable)
        return root in self._outside or not self._is_part_of(self.values.get(root))

    def is_part(self, binding: relax.Binding) -> bool:
        """Whether a tensor is bound that lies within another, or is another name of one."""
        if not isinstance(binding, relax.VarBinding):
            return False
        value = binding.value
        is_name = isinstance(value, relax.Var) and isinstance(value.ty, relax.TensorType)
        return is_name or self._is_part_of(value)

    def is_kernel(self, value: relax.Expr) -> bool:
        """Whether a value is the call of a kernel with tensors and sizes that are known."""
        called = value.op if isinstance(value, relax.Call) else None
        if not isinstance(called, tvm.ir.GlobalVar):
            return False
        is_machine_code = isinstance(self._mod[called], tirx.PrimFunc)
        return is_machine_code and all(map(_is_argument, value.args))

    def is_start(self, value: relax.Expr) -> bool:
        """Whether a kernel lets a tensor begin where its data begin; see ``tensor_start``."""
        return TENSOR_START in (self._mod[value.op].attrs or {})

    def root(self, value: relax.Expr) -> relax.Expr:
        """The variable that another one is a name of."""
        while isinstance(value, relax.Var) and isinstance(self.values.get(value), relax.Var):
            value = self.values[value]
        return value

    @staticmethod
    def _is_part_of(value: relax.Expr | None) -> bool:
        name = operator_name(value)
        if value is None or name not in (_ALLOCATION, *_PARTS_OF_TENSORS):
            return False
        if name == _ALLOCATION:
            return isinstance(value.args[2], relax.ShapeExpr)
        if name == _VIEW:
            shape, dtype, offset = value.args[1:4]
            known = isinstance(shape, relax.ShapeExpr) and isinstance(offset, tirx.IntImm)
            return known and hasattr(dtype, "value")
        base = value.args[0].ty
        known = base.dtype is not None and isinstance(base.shape, relax.ShapeExpr)
        return known and (name == _FROM_ZERO or isinstance(value.args[1], relax.ShapeExpr))

    def _use(self, value: relax.Expr) -> None:
        """Notes that the program itself needs what a value names."""
        names: list[relax.Var] = []
        tvm_ffi.structural_walk(value, (relax.Var, names.append))
        while names:
            name = self.root(names.pop())
            if name in self._outside:
                continue
            self._outside.add(name)
            if operator_name(self.values.get(name)) in _PARTS_OF_TENSORS:
                names.append(self.values[name].args[0])


def _is_argument(argument: relax.Expr) -> bool:
    if isinstance(argument, relax.Var | tvm.ir.GenericConst):
        return isinstance(argument.ty, relax.TensorType) or _is_size(argument)
    return _is_size(argument)


def _is_size(argument: relax.Expr) -> bool:
    return isinstance(argument.ty, tvm.ir.PrimType) and str(argument.ty.dtype) == "int64"


class _Writer:
    """Writes a function anew, with rows of kernels as one call each."""

    def __init__(self, builder: relax.BlockBuilder, mod: tvm.IRModule) -> None:
        self._builder, self._mod = builder, mod
        self._written: list[relax.Binding] = []
        self._row: list[relax.Call] = []
        self._storages: dict[relax.Var, relax.Var] = {}
        self._parts: dict[relax.Var, TensorPart] = {}
        self._merged = 0

    def written(self, func: relax.Function) -> relax.Function | None:
        """The function with such calls; None where no two kernels follow each other."""
        self._known = _Variables(func, self._mod)
        for binding in self._known.bindings:
            self._visit(binding)
        self._end_row()
        if not self._merged:
            return None
        body = relax.SeqExpr([relax.BindingBlock(self._written)], func.body.body)
        return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)

    def _visit(self, binding: relax.Binding) -> None:
        known, value = self._known, binding.value
        if known.is_part(binding):
            if known.is_outside(binding.var):
                self._written.append(binding)
        elif not known.is_kernel(value):
            # What allocates may as well come ahead of the row.
            if operator_name(value) not in (_STORAGE, _OWN_ALLOCATION):
                self._end_row()
            self._written.append(binding)
        elif not known.is_start(value):
            self._row.append(value)
            if len(self._row) == _MOST_KERNELS:
                self._end_row()
        elif known.is_outside(value.args[0]):
            self._written.append(binding)

    def _end_row(self) -> None:
        """Writes one call for the kernels since the last one."""
        row, self._row = self._row, []
        if not row:
            return
        calls = [KernelArguments(c.op, tuple(map(self._argument, c.args))) for c in row]
        if len(calls) == 1 and not any(isinstance(a, TensorPart) for a in calls[0].arguments):
            self._bind(row[0], "_")
            return
        self._merged += len(calls)
        made = calls_of_kernels(calls)
        variable = self._builder.add_func(made.func, "kernels")
        self._bind(relax.Call(variable, made.arguments), "_")

    def _bind(self, value: relax.Expr, name: str) -> relax.Var:
        value = self._builder.normalize(value)
        variable = relax.Var(name, value.ty)
        self._written.append(relax.VarBinding(variable, value))
        return variable

    def _argument(self, given: relax.Expr) -> Argument:
        if not isinstance(given, relax.Var) or not isinstance(given.ty, relax.TensorType):
            return given
        root = self._known.root(given)
        if self._known.is_outside(root):
            return root
        if root not in self._parts:
            self._parts[root] = self._found_part(root)
        return self._parts[root]

    def _found_part(self, variable: relax.Var) -> TensorPart:
        """Where a tensor lies, by what binds it."""
        value = self._known.values[variable]
        name = operator_name(value)
        if name == _ALLOCATION:
            storage, offset, shape, dtype = value.args[:4]
            whole = self._whole(storage)
            return TensorPart(whole, offset, tuple(shape.values), str(dtype.value))
        base = self._argument(value.args[0])
        if not isinstance(base, TensorPart):
            sizes, dtype = tuple(base.ty.shape.values), str(base.ty.dtype)
            base = TensorPart(base, tirx.const(0, "int64"), sizes, dtype)
        if name == _FROM_ZERO:
            return base
        base = replace(base, shape=tuple(value.args[1].values))
        if name == _VIEW:
            dtype, offset = value.args[2:4]
            base = replace(base, dtype=str(dtype.value), offset=base.offset + offset)
        return base

    def _whole(self, storage: relax.Var) -> relax.Var:
        """A tensor at the start of a storage: functions of machine code take no storages."""
        if storage not in self._storages:
            value = relax.op.memory.alloc_tensor(storage, 0, relax.ShapeExpr([0]), "uint8")
            self._storages[storage] = self._bind(value, "storage")
        return self._storages[storage]
