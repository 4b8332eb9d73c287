"""A model's graph as one function of MLIR on tensors.

Before: ``lv = call_tir(matmul, (x, w)); gv = call_tir(add, (lv, b))``
After:  ``%0 = linalg.matmul ins(%x, %w) ...; %1 = linalg.add ins(%0, %b) ...``

The graph is taken after its operators were legalised and before they are fused. Each kernel becomes
a function on tensors, in which operations get the names that MLIR finds for them, and the graph
calls it. So what an operator computes is written in one place, TVM's legalisation, and there is no
second table of operators. MLIR's own pass puts the functions where they are called.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from torch_mlir import ir
from torch_mlir.dialects import arith, func, scf, tensor
from tvm import relax, tirx

from tvm_ext.configs.errors import NotApplicable, last_line
from tvm_ext.mlir import MlirError
from tvm_ext.mlir import operations as ops
from tvm_ext.mlir.element_types import dtype_of, stored_type, value_type
from tvm_ext.mlir.expressions import ExpressionWriter
from tvm_ext.mlir.from_tensorir import ON_TENSORS, verified, written_parameters
from tvm_ext.mlir.lowering import run_passes
from tvm_ext.mlir.tensor_functions import convert_to_tensors, parameter_type
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.spans import (
    bindings_of,
    describe_origin,
    origins_of,
    relax_functions,
)
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent

MAIN = "main"
NOT_CONVERTED = "not converted"

# Constants up to this many elements are written out; larger ones are parameters of the function,
# so that the text of a model is not as long as its weights.
_FEW = 16


@dataclass(frozen=True)
class ConvertedOperator:
    """One operator of a graph on its way to MLIR.

    Attributes
    ----------
    name : str
        The kernel that it is legalised to, or the Relax operator.
    origins : tuple[str, ...]
        The ONNX nodes that it comes from.
    form : str
        "linalg on tensors", "loops on memrefs", or "not converted".
    reason : str
        Why it is no linalg; empty where it is.
    """

    name: str
    origins: tuple[str, ...]
    form: str
    reason: str = ""


@dataclass(frozen=True)
class ConvertedGraph:
    """A model's graph as a module of MLIR.

    Attributes
    ----------
    module : ir.Module
        Has the function ``main``.
    operators : tuple[ConvertedOperator, ...]
        In the order of a run.
    weights : tuple[np.ndarray, ...]
        The constants that are parameters of ``main``, after the inputs of the model.
    """

    module: ir.Module
    operators: tuple[ConvertedOperator, ...]
    weights: tuple[np.ndarray, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every operator was converted."""
        return all(one.form != NOT_CONVERTED for one in self.operators)


def convert_graph(mod: tvm.IRModule, context: ir.Context | None = None) -> ConvertedGraph:
    """Writes the function ``main`` of a legalised module as MLIR.

    An operator that has no form is a call of a function without a body, and is listed with the
    reason.

    Parameters
    ----------
    mod : tvm.IRModule
        A Relax module after LegalizeOps.
    context : ir.Context, optional
        What the module lives in.

    Raises
    ------
    NotApplicable
        An input or output of the model has no type in MLIR.
    """
    with context or ir.Context(), ir.Location.unknown():
        graph = _Graph(mod)
        graph.write_main()
        verified(graph.module)
        run_passes(graph.module, ["inline", "canonicalize", "cse", "symbol-dce"])
    return ConvertedGraph(graph.module, tuple(graph.operators), tuple(graph.weights))


# What a variable of Relax stands for: a tensor or number, a tuple of such, or sizes.
_Value = Any


@dataclass
class _Scope:
    """What the variables of a function of Relax, and its symbolic sizes, stand for."""

    values: dict[int, _Value] = field(default_factory=dict)
    sizes: dict[int, ir.Value] = field(default_factory=dict)

    def inner(self) -> "_Scope":
        return _Scope(dict(self.values), dict(self.sizes))

    def writer(self) -> ExpressionWriter:
        return ExpressionWriter(self.sizes, _no_load)


def _no_load(load: Any) -> ir.Value:
    raise NotApplicable("a size is loaded from memory")


class _Graph:
    """Writes the functions of a module into one."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.module = ir.Module.create()
        self.operators: list[ConvertedOperator] = []
        self.weights: list[np.ndarray] = []
        self._mod = mod
        self._functions = {str(v.name_hint): f for v, f in relax_functions(mod).items()}
        self._kernels: dict[str, ConvertedOperator] = {}
        self._weights: dict[int, ir.Value] = {}
        self._numbers = itertools.count()
        self._loops = _recursive(self._functions)
        # Before ``main``: a module that is made at an insertion point becomes a part of that.
        for variable, kernel in mod.functions.items():
            if isinstance(kernel, tirx.PrimFunc):
                name = str(variable.name_hint)
                self._kernels[name] = self._converted(name, kernel)

    def write_main(self) -> None:
        """Writes ``main``, with constants as parameters behind its own."""
        own = self._functions[MAIN]
        types = [_type_of(param.ty) for param in own.params]
        with ir.InsertionPoint(self.module.body):
            function = func.FuncOp(MAIN, (types, []))
            self._entry = function.add_entry_block()
        with ir.InsertionPoint(self._entry):
            result = self._called(MAIN, list(self._entry.arguments), _Scope())
            results = list(_flat(result))
            func.return_(results)
        parameters = [one.type for one in self._entry.arguments]
        kind = ir.FunctionType.get(parameters, [one.type for one in results])
        function.attributes["function_type"] = ir.TypeAttr.get(kind)
        # Nobody may compute in the memory of an input or a weight.
        kept = ir.DictAttr.get({"bufferization.writable": ir.BoolAttr.get(False)})
        function.attributes["arg_attrs"] = ir.ArrayAttr.get([kept] * len(parameters))

    def _called(self, name: str, arguments: Sequence[_Value], scope: _Scope) -> _Value:
        """Writes the body of a function of Relax where it is called."""
        if name in self._loops:
            raise NotApplicable("it is a loop, whose steps call themselves")
        own = self._functions[name]
        for param, argument in zip(own.params, arguments, strict=True):
            scope.values[hash(param)] = argument
            _bind_sizes(param.ty, argument, scope)
        return self._body(own.body, scope)

    def _body(self, body: Any, scope: _Scope) -> _Value:
        if not isinstance(body, relax.SeqExpr):
            return self._value(body, scope)
        for block in body.blocks:
            for binding in block.bindings:
                self._bind(binding, scope)
        return self._value(body.body, scope)

    def _bind(self, binding: Any, scope: _Scope) -> None:
        with ir.Location.name(describe_origin(binding.var)):
            value = self._bound(binding, scope)
            if isinstance(binding, relax.MatchCast):
                value = _cast_to(binding.var.ty, value)
                _bind_sizes(binding.var.ty, value, scope)
        scope.values[hash(binding.var)] = value

    def _bound(self, binding: Any, scope: _Scope) -> _Value:
        """The value of a binding; of an operator without a form, the results of a declaration."""
        value = binding.value
        if not isinstance(value, relax.Call | relax.If):
            return self._value(value, scope)
        is_inner = isinstance(value, relax.If) or _callee(value) in self._functions
        try:
            with self._whole_or_nothing():
                done, result = self._operator(value, scope)
        except NotApplicable as refused:
            name = "if" if isinstance(value, relax.If) else _callee(value) or operator_name(value)
            done = ConvertedOperator(name, (), NOT_CONVERTED, refused.reason)
            result = self._declared(binding, scope)
        if not is_inner or done.form == NOT_CONVERTED:
            origins = origins_of(binding.var)
            self.operators.append(ConvertedOperator(done.name, origins, done.form, done.reason))
        return result

    @contextmanager
    def _whole_or_nothing(self) -> Iterator[None]:
        """Takes back what was written in the block, and noted for it, where it is refused."""
        block = ir.InsertionPoint.current.block
        written, noted, known = len(block.operations), len(self.operators), len(self._weights)
        try:
            yield
        except NotApplicable:
            for op in reversed(list(block.operations)[written:]):
                op.operation.erase()
            for key in list(self._weights)[known:]:
                self._entry.erase_argument(self._weights.pop(key).arg_number)
            del self.weights[known:]
            del self.operators[noted:]
            raise

    def _operator(self, value: Any, scope: _Scope) -> tuple[ConvertedOperator, _Value]:
        if isinstance(value, relax.If):
            return ConvertedOperator("if", (), ON_TENSORS), self._if(value, scope)
        name = operator_name(value)
        if _callee(value) in self._functions:
            given = [self._value(one, scope) for one in value.args]
            inner = self._called(_callee(value), given, _Scope())
            return ConvertedOperator(_callee(value), (), ON_TENSORS), inner
        if name == "relax.call_tir":
            return self._kernel_call(value, scope)
        if name == "relax.call_pure_packed":
            return self._packed_call(value, scope)
        if name == "relax.reshape":
            return ConvertedOperator("reshape", (), ON_TENSORS), self._reshaped(value, scope)
        if name == "relax.shape_of":
            given = self._value(value.args[0], scope)
            return ConvertedOperator("shape_of", (), ON_TENSORS), tuple(_sizes(given))
        raise NotApplicable(f"{name.removeprefix('relax.')} has no operation in MLIR here")

    def _value(self, expr: Any, scope: _Scope) -> _Value:
        """What an expression stands for that computes nothing."""
        if isinstance(expr, tvm.ir.Var) and hash(expr) in scope.values:
            return scope.values[hash(expr)]
        if isinstance(expr, tvm.ir.GenericConst):
            return self._constant(expr)
        if isinstance(expr, relax.Tuple):
            return tuple(self._value(one, scope) for one in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self._value(expr.tuple_value, scope)[expr.index]
        if isinstance(expr, relax.ShapeExpr):
            writer = scope.writer()
            return tuple(writer.index(one) for one in expr.values)
        if isinstance(getattr(expr, "ty", None), tvm.ir.PrimType):
            return scope.writer().value(expr)
        if isinstance(expr, relax.SeqExpr):
            return self._body(expr, scope)
        raise NotApplicable(f"{type(expr).__name__} has no operation in MLIR here")

    def _constant(self, expr: Any) -> ir.Value:
        """A few numbers written out, or a parameter of ``main``."""
        key = hash(expr.value)
        if key in self._weights:
            return self._weights[key]
        array = expr.value.numpy()
        kind = _type_of(expr.ty)
        if array.size <= _FEW and array.dtype.kind in "iuf" and array.dtype.itemsize >= 4:
            data = np.atleast_1d(np.ascontiguousarray(array))
            shape = list(array.shape)
            numbers = ir.DenseElementsAttr.get(data, type=kind.element_type, shape=shape)
            return arith.constant(kind, numbers)
        self._weights[key] = self._entry.add_argument(kind, ir.Location.current)
        self.weights.append(array)
        return self._weights[key]

    def _kernel_call(self, call: Any, scope: _Scope) -> tuple[ConvertedOperator, _Value]:
        name = _callee(call)
        done = self._kernels.get(
            name, ConvertedOperator(name, (), NOT_CONVERTED, "it is no kernel")
        )
        if done.form == NOT_CONVERTED:
            raise NotApplicable(done.reason)
        kernel = self._mod[call.args[0]]
        given = [self._value(one, scope) for one in call.args[1].fields]
        results = _fields(call.ty_args[0])
        given += [_empty(one, scope) for one in results]
        if len(given) != len(kernel.params):
            raise NotApplicable("it is called with another number of tensors than it takes")
        written = written_parameters(kernel)
        if written != [*range(len(given) - len(results), len(given))]:
            raise NotApplicable("it writes to what it reads, or leaves a result as it was")
        types = [parameter_type(param) for param in kernel.params]
        arguments = [_as_type(one, kind) for one, kind in zip(given, types, strict=True)]
        called = func.call([types[place] for place in written], name, arguments)
        found = [called] if len(results) == 1 else list(called)
        values = [
            _as_type(one, wanted) for one, wanted in zip(found, map(_type_of, results), strict=True)
        ]
        is_tuple = isinstance(call.ty_args[0], relax.TupleType)
        return done, tuple(values) if is_tuple else values[0]

    def _packed_call(self, call: Any, scope: _Scope) -> tuple[ConvertedOperator, _Value]:
        name = str(getattr(call.args[0], "global_symbol", "a function"))
        if name != "vm.builtin.tensor_to_shape":
            raise NotApplicable(f"the function {name} is no kernel")
        given = self._value(call.args[1], scope)
        done = ConvertedOperator("tensor_to_shape", (), ON_TENSORS)
        elements = [
            tensor.extract(given, [ops.index_constant(n)]) for n in range(call.ty_args[0].ndim)
        ]
        return done, tuple(arith.index_cast(ir.IndexType.get(), one) for one in elements)

    def _converted(self, name: str, kernel: tirx.PrimFunc) -> ConvertedOperator:
        """What became of a kernel, whose function is then in the module."""
        try:
            return self._added(name, kernel)
        except (NotApplicable, MlirError) as error:
            reason = error.reason if isinstance(error, NotApplicable) else last_line(error)
            return ConvertedOperator(name, (), NOT_CONVERTED, reason)

    def _added(self, name: str, kernel: tirx.PrimFunc) -> ConvertedOperator:
        converted = convert_to_tensors(kernel, name, ir.Context.current)
        run_passes(converted.module, ["canonicalize", "linalg-specialize-generic-ops", "cse"])
        for op in list(converted.module.body.operations):
            op.operation.detach_from_parent()
            self.module.body.append(op)
        return ConvertedOperator(name, (), converted.form, converted.loops_because)

    def _declared(self, binding: Any, scope: _Scope) -> _Value:
        """The results of a function without a body; raises NotApplicable where they have no type.

        It takes what the operator takes, as far as that has a type in MLIR.
        """
        types = [_type_of(one) for one in _fields(binding.var.ty)]
        variables = [v for v in relax.analysis.free_vars(binding.value) if hash(v) in scope.values]
        given = [one for v in variables for one in _flat(scope.values[hash(v)])]
        name = f"not_converted_{next(self._numbers)}"
        with ir.InsertionPoint(self.module.body):
            func.FuncOp(name, ([one.type for one in given], types), visibility="private")
        found = func.call(types, name, given)
        if isinstance(binding.var.ty, relax.TupleType):
            return tuple([found] if len(types) == 1 else found)
        return found

    def _if(self, value: Any, scope: _Scope) -> _Value:
        """Both branches as regions that yield their tensors."""
        condition = self._value(value.cond, scope)
        if isinstance(condition.type, ir.RankedTensorType):
            condition = ops.cast_from_memory(tensor.extract(condition, []), "bool")
        types = [_type_of(one) for one in _fields(value.ty)]
        chosen = scf.IfOp(condition, types, has_else=True)
        branches = (value.true_branch, value.false_branch)
        for block, branch in zip((chosen.then_block, chosen.else_block), branches, strict=True):
            with ir.InsertionPoint(block):
                results = _flat(self._body(branch, scope.inner()))
                scf.yield_([_as_type(one, kind) for one, kind in zip(results, types, strict=True)])
        found = tuple(chosen.results)
        return found if isinstance(value.ty, relax.TupleType) else found[0]

    def _reshaped(self, call: Any, scope: _Scope) -> ir.Value:
        given = self._value(call.args[0], scope)
        sizes = [static_extent(one) for one in call.ty.shape]
        kind = _type_of(call.ty)
        writer = scope.writer()
        extents = [
            writer.index(size) if known is None else ops.index_constant(known)
            for size, known in zip(call.ty.shape, sizes, strict=True)
        ]
        of_indices = ir.RankedTensorType.get([len(extents)], ir.IndexType.get())
        return tensor.reshape(kind, given, tensor.from_elements(of_indices, extents))


def _recursive(functions: Mapping[str, relax.Function]) -> set[str]:
    """The functions that call themselves, by others or directly: how Relax says a loop."""
    calls = {
        name: {_callee(one.value) for one in bindings_of(own) if isinstance(one.value, relax.Call)}
        & set(functions)
        for name, own in functions.items()
    }
    found = set()
    for name in functions:
        reached, ahead = set[str](), list(calls[name])
        while ahead:
            one = ahead.pop()
            if one not in reached:
                reached.add(one)
                ahead += calls[one]
        if name in reached:
            found.add(name)
    return found


def _callee(call: Any) -> str:
    """The function that a call is of; empty for an operator."""
    named = call.op if isinstance(call.op, tvm.ir.GlobalVar) else next(iter(call.args), None)
    return str(named.name_hint) if isinstance(named, tvm.ir.GlobalVar) else ""


def _fields(ty: Any) -> list[Any]:
    """The types of a tuple, or the type itself."""
    if isinstance(ty, relax.TupleType):
        return [one for each in ty.fields for one in _fields(each)]
    return [ty]


def _flat(value: _Value) -> list[ir.Value]:
    if isinstance(value, tuple):
        return [one for each in value for one in _flat(each)]
    return [value]


def _type_of(ty: Any) -> ir.Type:
    """The type of a tensor or number of Relax; raises NotApplicable for others."""
    if isinstance(ty, tvm.ir.PrimType):
        return value_type(str(ty.dtype))
    if not isinstance(ty, relax.TensorType) or ty.dtype is None:
        raise NotApplicable("it has a value that is no tensor of a known type")
    element = stored_type(dtype_of(_Typed(str(ty.dtype))))
    if ty.ndim == -1:
        return ir.UnrankedTensorType.get(element)
    known = isinstance(ty.shape, relax.ShapeExpr)
    sizes = [static_extent(size) for size in ty.shape.values] if known else [None] * ty.ndim
    any_size = ir.ShapedType.get_dynamic_size()
    return ir.RankedTensorType.get([any_size if one is None else one for one in sizes], element)


@dataclass(frozen=True)
class _Typed:
    """Carries the name of a type to ``dtype_of``."""

    dtype: str


def _empty(ty: Any, scope: _Scope) -> ir.Value:
    writer = scope.writer()
    if not isinstance(getattr(ty, "shape", None), relax.ShapeExpr):
        raise NotApplicable("the sizes of a result are not known")
    known = [static_extent(size) for size in ty.shape.values]
    mixed = [
        writer.index(size) if one is None else one
        for size, one in zip(ty.shape.values, known, strict=True)
    ]
    return tensor.empty(mixed, stored_type(dtype_of(_Typed(str(ty.dtype)))))


def _as_type(value: ir.Value, kind: ir.Type) -> ir.Value:
    """The same tensor with sizes said or left open, as the type has them."""
    return value if value.type == kind else tensor.cast(kind, value)


def _cast_to(ty: Any, value: _Value) -> _Value:
    """A value, or a tuple of such, as a type of Relax says that it is."""
    if isinstance(ty, relax.TupleType):
        return tuple(_cast_to(*pair) for pair in zip(ty.fields, value, strict=True))
    return _as_type(value, _type_of(ty)) if isinstance(ty, relax.TensorType) else value


def _sizes(value: ir.Value) -> list[ir.Value]:
    return [tensor.dim(value, ops.index_constant(axis)) for axis in range(value.type.rank)]


def _bind_sizes(ty: Any, value: _Value, scope: _Scope) -> None:
    """Makes the symbolic sizes that a type is the first to name stand for those of its value."""
    if isinstance(ty, relax.TupleType):
        for one, each in zip(ty.fields, value, strict=True):
            _bind_sizes(one, each, scope)
        return
    sizes: Sequence[Any] = ()
    if isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr):
        sizes = ty.shape.values
    elif isinstance(ty, relax.ShapeType) and ty.values is not None:
        sizes = ty.values
    for axis, size in enumerate(sizes):
        if isinstance(size, tvm.ir.Var) and hash(size) not in scope.sizes:
            is_shape = isinstance(value, tuple)
            found = value[axis] if is_shape else tensor.dim(value, ops.index_constant(axis))
            scope.sizes[hash(size)] = found
