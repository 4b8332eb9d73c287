"""Runs the loops of a kernel in Python, so that a wrong order shows whatever a machine does.

Iterations of parallel loops run from the last to the first. Of lanes, each store computes all
values before it stores them. An element that is outside of its array, or read before it is written,
is an error.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, tirx

_BINARY = {
    tirx.Add: "({} + {})",
    tirx.Sub: "({} - {})",
    tirx.Mul: "({} * {})",
    tirx.FloorDiv: "({} // {})",
    tirx.FloorMod: "({} % {})",
    tirx.Min: "min({}, {})",
    tirx.Max: "max({}, {})",
    tirx.And: "({} and {})",
    tirx.Or: "({} or {})",
    tirx.EQ: "({} == {})",
    tirx.NE: "({} != {})",
    tirx.LT: "({} < {})",
    tirx.LE: "({} <= {})",
    tirx.GT: "({} > {})",
    tirx.GE: "({} >= {})",
}


def interpreted(func: tirx.PrimFunc, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a kernel leaves in its arguments, given by name."""
    writer = _Writer()
    elements = {}
    for param in func.params:
        name = str(param.name)
        indices = itertools.product(*map(range, arrays[name].shape))
        elements[writer.name(param)] = {index: float(arrays[name][index]) for index in indices}
    writer.write(func.body, "")
    exec("\n".join(writer.lines), dict(elements))
    found = {}
    for param in func.params:
        result = np.empty(arrays[str(param.name)].shape)
        for index, value in elements[writer.name(param)].items():
            result[index] = value
        assert len(elements[writer.name(param)]) == result.size, "a store outside of an array"
        found[str(param.name)] = result
    return found


class _Writer:
    """Writes a kernel as text of Python."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[int, str] = {}

    def name(self, var: Any) -> str:
        """A name of its own for a variable or an array."""
        return self._names.setdefault(hash(var), f"{var.name}_{len(self._names)}")

    def write(self, stmt: Any, indent: str, lanes: str = "") -> None:
        """Adds the lines of a statement; ``lanes`` loops over the lanes around it."""
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                self.write(part, indent, lanes)
        elif isinstance(stmt, s_tir.SBlockRealize):
            self.write(stmt.block.body, indent, lanes)
        elif isinstance(stmt, tirx.AllocBuffer):
            self.lines.append(f"{indent}{self.name(stmt.buffer)} = {{}}")
        elif isinstance(stmt, tirx.For):
            self._loop(stmt, indent, lanes)
        elif isinstance(stmt, tirx.IfThenElse):
            self._branch(stmt, indent, lanes)
        elif isinstance(stmt, tirx.BufferStore):
            self._store(stmt, indent, lanes)
        else:
            raise TypeError(f"no Python for {type(stmt).__name__}")

    def _loop(self, loop: tirx.For, indent: str, lanes: str) -> None:
        low = self._text(loop.min)
        iterations = f"range({low}, {low} + {self._text(loop.extent)})"
        if loop.kind == tirx.ForKind.PARALLEL:
            iterations = f"reversed({iterations})"
        head = f"for {self.name(loop.loop_var)} in {iterations}"
        if loop.kind == tirx.ForKind.VECTORIZED:
            self.write(loop.body, indent, head)
            return
        self.lines.append(f"{indent}{head}:")
        self.write(loop.body, indent + " ", lanes)

    def _branch(self, stmt: tirx.IfThenElse, indent: str, lanes: str) -> None:
        if lanes:
            # Lanes that branch are taken one after the other.
            self.lines.append(f"{indent}{lanes}:")
            indent += " "
        self.lines.append(f"{indent}if {self._text(stmt.condition)}:")
        self.write(stmt.then_case, indent + " ")
        if stmt.else_case is not None:
            self.lines.append(f"{indent}else:")
            self.write(stmt.else_case, indent + " ")

    def _store(self, store: tirx.BufferStore, indent: str, lanes: str) -> None:
        element, value = self._indices(store.indices), self._text(store.value)
        array = self.name(store.buffer)
        if lanes:
            self.lines.append(f"{indent}{array}.update([({element}, {value}) {lanes}])")
        else:
            self.lines.append(f"{indent}{array}[{element}] = {value}")

    def _indices(self, indices: Any) -> str:
        return "(" + "".join(f"{self._text(index)}, " for index in indices) + ")"

    def _text(self, expr: Any) -> str:
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):
            return repr(expr.value)
        if isinstance(expr, tvm.ir.Var):
            return self.name(expr)
        if isinstance(expr, tvm.ir.TensorLoad):
            return f"{self.name(expr.source)}[{self._indices(expr.indices)}]"
        if isinstance(expr, tirx.Cast):
            return self._text(expr.value)
        if isinstance(expr, tirx.Not):
            return f"(not {self._text(expr.a)})"
        if isinstance(expr, tirx.Select):
            parts = (expr.true_value, expr.condition, expr.false_value)
            return "({} if {} else {})".format(*map(self._text, parts))
        return _BINARY[type(expr)].format(self._text(expr.a), self._text(expr.b))
