"""How many bytes of weights a run reads at least, which is not all that a program holds."""

import math
from collections.abc import Iterable, Iterator

import tvm
from tvm import relax, tirx

from tvm_ext.tir_schedules.analysis.buffer_access import nodes

# Constants by their hash, with their bytes.
_Weights = dict[int, int]


def weights_read(mod: tvm.IRModule) -> int:
    """Bytes of the constants that every run of ``main`` reads whole.

    A table of which kernels take rows by numbers that a run computes, such as the embeddings of
    tokens, does not count. Of an If the branch that reads less does, and a loop's body once.

    ``mod`` is lowered: its functions call kernels, which have no schedules yet.
    """
    return sum(_Reader(mod).of(mod["main"]).values())


class _Reader:
    """Constants that functions of a module read whole."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        self._functions: dict[str, _Weights] = {}
        self._tables: dict[str, frozenset[int]] = {}

    def of(self, expr: relax.Expr) -> _Weights:
        """Of a function, a sequence of bindings, or the value of a binding."""
        if isinstance(expr, relax.Function):
            return self.of(expr.body)
        if isinstance(expr, relax.SeqExpr):
            bound = [binding.value for block in expr.blocks[:] for binding in block.bindings[:]]
            return _together(map(self.of, bound))
        if isinstance(expr, relax.If):
            branches = [self.of(expr.true_branch), self.of(expr.false_branch)]
            return min(branches, key=lambda read: sum(read.values()))
        return self._of_call(expr) if isinstance(expr, relax.Call) else {}

    def _of_call(self, call: relax.Call) -> _Weights:
        arguments = list(_flat(call.args))
        callee = arguments[0] if arguments else None
        if isinstance(call.op, tvm.ir.GlobalVar):
            return _together([*map(_constant, arguments), self._of_function(call.op)])
        if not isinstance(callee, tvm.ir.GlobalVar):
            return _together(map(_constant, arguments))
        weights = [_constant(argument) for argument in arguments[1:]]
        # To look into a kernel takes longer than into its arguments.
        tables = self._tables_of(callee) if any(weights) else ()
        read = [one for place, one in enumerate(weights) if place not in tables]
        return _together([*read, self._of_function(callee)])

    def _of_function(self, variable: tvm.ir.GlobalVar) -> _Weights:
        name = str(variable.name_hint)
        if name not in self._functions:
            # A loop calls itself.
            self._functions[name] = {}
            func = self._mod[variable]
            if isinstance(func, relax.Function):
                self._functions[name] = self.of(func)
        return self._functions[name]

    def _tables_of(self, variable: tvm.ir.GlobalVar) -> frozenset[int]:
        """Places of the arguments of which a kernel takes elements by numbers that it reads."""
        name = str(variable.name_hint)
        if name not in self._tables:
            func = self._mod[variable]
            is_kernel = isinstance(func, tirx.PrimFunc)
            self._tables[name] = frozenset(_tables(func)) if is_kernel else frozenset()
        return self._tables[name]


def _tables(kernel: tirx.PrimFunc) -> Iterator[int]:
    loads = nodes(kernel.body, tvm.ir.TensorLoad)
    for place, param in enumerate(kernel.params):
        own = [load for load in loads if load.source.same_as(param)]
        if own and all(_is_by_data(load) for load in own):
            yield place


def _is_by_data(load: tvm.ir.TensorLoad) -> bool:
    return any(nodes(index, tvm.ir.TensorLoad) for index in load.indices)


def _flat(arguments: Iterable[relax.Expr]) -> Iterator[relax.Expr]:
    for argument in arguments:
        if isinstance(argument, relax.Tuple):
            yield from _flat(argument.fields[:])
        else:
            yield argument


def _constant(expr: relax.Expr) -> _Weights:
    if not isinstance(expr, tvm.ir.GenericConst) or not hasattr(expr.value, "shape"):
        return {}
    data = expr.value
    bits = tvm.DataType(str(data.dtype)).bits
    return {hash(data): (math.prod(int(size) for size in data.shape) * bits + 7) // 8}


def _together(read: Iterable[_Weights]) -> _Weights:
    found: _Weights = {}
    for one in read:
        found |= one
    return found
