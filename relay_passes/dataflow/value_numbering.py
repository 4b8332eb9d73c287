"""Value numbering: which values are equal in every run.

Each function is walked once, and a call gets the number of an earlier one of the same operator on
operands of the same numbers (Cocke and Schwartz, "Programming Languages and Their Compilers", 1970;
LLVM's ``EarlyCSE``). Operands of commutative operators are taken in one order. A value inside of a
branch may equal one outside of it, and never one of the other branch: that one is not computed when
the first one is.
"""

import math
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from tvm_ext.relay_passes.dataflow.side_effects import is_pure_operator
from tvm_ext.relay_passes.spans import relax_functions

# Elements of constants that are compared; larger ones are equal where they are one object.
_MOST_COMPARED = 1024

# Bits are equal in either order, those of a NaN aside.
COMMUTATIVE = frozenset(
    f"relax.{name}"
    for name in (
        *("add", "multiply", "equal", "not_equal"),
        *("logical_and", "logical_or", "logical_xor"),
        *("bitwise_and", "bitwise_or", "bitwise_xor"),
    )
)


class ValueNumbers:
    """Numbers of the values of a module."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.leaders: dict[int, relax.Var] = {}

    def equal(self, one: relax.Var, other: relax.Var) -> bool:
        """Whether two variables have the same value in every run that computes both."""
        first = self.numbers.get(hash(one))
        return first is not None and first == self.numbers.get(hash(other))

    def leader(self, var: relax.Var) -> relax.Var:
        """The first variable of the value, which is computed wherever ``var`` is."""
        return self.leaders.get(hash(var), var)


def value_numbers(mod: tvm.IRModule) -> ValueNumbers:
    """Finds the values that are equal within each function of a module."""
    found = ValueNumbers()
    numberer = _Numberer(found)
    for func in relax_functions(mod).values():
        numberer.number_function(func)
    return found


class _Numberer:
    def __init__(self, found: ValueNumbers) -> None:
        self.found = found
        self._next = 0
        # By what is computed: the number, and the first variable of it. One table for each branch
        # around, the innermost last.
        self._tables: list[dict[Any, tuple[int, relax.Var]]] = []

    def number_function(self, func: relax.Function) -> None:
        self._tables.append({})
        for param in func.params[:]:
            self._fresh(param)
        self._number(func.body)
        self._tables.pop()

    def _fresh(self, var: relax.Var) -> None:
        self._next += 1
        self.found.numbers[hash(var)] = self._next

    def _number(self, body: relax.Expr) -> None:
        if not isinstance(body, relax.SeqExpr):
            return
        for block in body.blocks[:]:
            for binding in block.bindings[:]:
                self._bind(binding)

    def _bind(self, binding: relax.Binding) -> None:
        var, value = binding.var, binding.value
        if isinstance(value, relax.If):
            for side in (value.true_branch, value.false_branch):
                self._tables.append({})
                self._number(side)
                self._tables.pop()
        elif isinstance(value, relax.Function):
            self.number_function(value)
        if isinstance(binding, relax.MatchCast):
            # Its variable has other sizes in its type, which others may be written in.
            self._fresh(var)
            return
        if isinstance(value, relax.Var) and hash(value) in self.found.numbers:
            self.found.numbers[hash(var)] = self.found.numbers[hash(value)]
            self.found.leaders[hash(var)] = self.found.leader(value)
            return
        key = self._key(value)
        known = None if key is None else self._known(key)
        if known is None:
            self._fresh(var)
            if key is not None:
                self._tables[-1][key] = self._next, var
            return
        self.found.numbers[hash(var)], self.found.leaders[hash(var)] = known

    def _known(self, key: Any) -> tuple[int, relax.Var] | None:
        return next((table[key] for table in reversed(self._tables) if key in table), None)

    def _key(self, value: relax.Expr) -> Any:
        """What is the same for values that are equal; None for one that equals no other."""
        if isinstance(value, relax.Var):
            return "value", self.found.numbers.get(hash(value), -hash(value))
        if isinstance(value, relax.Tuple):
            fields = tuple(map(self._key, value.fields[:]))
            return None if None in fields else ("tuple", fields)
        if isinstance(value, relax.TupleGetItem):
            whole = self._key(value.tuple_value)
            return None if whole is None else ("field", whole, int(value.index))
        if isinstance(value, relax.Call):
            return self._key_of_call(value)
        if isinstance(value, tvm.ir.GenericConst):
            return self._key_of_constant(value)
        if isinstance(value, tvm.ir.GlobalVar):
            return "function", str(value.name_hint)
        if isinstance(value, relax.If | relax.Function | relax.SeqExpr):
            return None
        return "literal", tvm_ffi.StructuralKey(value)

    def _key_of_constant(self, value: relax.Expr) -> Any:
        shape = getattr(value.value, "shape", None)
        if shape is not None and math.prod(map(int, shape)) <= _MOST_COMPARED:
            return "literal", tvm_ffi.StructuralKey(value)
        return "tensor", hash(value.value)

    def _key_of_call(self, call: relax.Call) -> Any:
        if not is_pure_operator(call):
            return None
        operands = [self._key(argument) for argument in call.args[:]]
        if None in operands:
            return None
        name = str(call.op.name)
        if name in COMMUTATIVE:
            operands.sort(key=hash)
        attributes = None if call.attrs is None else tvm_ffi.StructuralKey(call.attrs)
        types = tuple(map(tvm_ffi.StructuralKey, call.ty_args[:]))
        return name, tuple(operands), attributes, types
