"""The names that a kernel has for each of its parameters, and addresses in a parameter's memory.

Templates reach arrays of several dimensions through flat views, and one item of a batch through a
view that begins at the item. An access to such a view is one to the parameter.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.sym import Analyzer

from tvm_ext.tir_schedules.analysis.buffer_access import flat_address, is_compact, nodes
from tvm_ext.tir_schedules.statements import buffer_data_operator

_ADDRESS_OF = tvm.ir.Op.get("tirx.address_of")


class ArrayViews:
    """The parameters of a kernel under all their names; without gaps, or they have none."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self._func, self._body = func, func.body
        # By the hash of a variable: which parameter it is, and the address where it begins.
        self._known: dict[int, tuple[int, Any]] = {}
        self._views = nodes(func.body, tirx.DeclBuffer)
        for place, param in enumerate(func.params):
            if isinstance(param.ty, tirx.BufferType) and is_compact(param, symbolic_sizes=True):
                self._known[hash(param)] = place, tirx.const(0, "int64")
        for view in self._views:
            self._add(view)

    @cached_property
    def _analyzer(self) -> Analyzer:
        return _analyzer_of(self._func)

    def _add(self, view: tirx.DeclBuffer) -> None:
        data = view.data
        is_call = isinstance(data, tvm.ir.Call) and len(data.args) == 1
        if not is_call or not is_compact(view.buffer, symbolic_sizes=True):
            return
        (named,) = data.args
        if data.op.same_as(buffer_data_operator()) and hash(named) in self._known:
            self._known[hash(view.buffer)] = self._known[hash(named)]
        elif data.op.same_as(_ADDRESS_OF) and isinstance(named, tvm.ir.TensorLoad):
            address = self.address(named.source, named.indices)
            if address is not None:
                self._known[hash(view.buffer)] = self._known[hash(named.source)][0], address

    def place_of(self, array: tvm.ir.Var) -> int | None:
        """The place, among the parameters, of the one that an array is a name of."""
        return self._known.get(hash(array), (None,))[0]

    def address(self, array: tvm.ir.Var, indices: Sequence[tvm.ir.Expr]) -> Any:
        """The position of an element in the parameter, in elements; None for another array."""
        if hash(array) not in self._known:
            return None
        return self._known[hash(array)][1] + flat_address(array, indices, "int64")

    def distance(self, store: tirx.BufferStore, load: tvm.ir.TensorLoad) -> int | None:
        """By how much an element is written behind the address where one is read.

        None where that is not the same number in every iteration.
        """
        written = self.address(store.buffer, store.indices)
        read = self.address(load.source, load.indices)
        if written is None or read is None:
            return None
        found = self._analyzer.simplify(written - read)
        return int(found) if isinstance(found, tirx.IntImm) else None

    def stores_to(self, place: int) -> list[tirx.BufferStore]:
        """All statements that write to a parameter."""
        stores = nodes(self._body, tirx.BufferStore)
        return [store for store in stores if self.place_of(store.buffer) == place]

    def loads_of(self, value: tvm.ir.Expr, place: int) -> list[tvm.ir.TensorLoad]:
        """What an expression reads of a parameter."""
        loads = nodes(value, tvm.ir.TensorLoad)
        return [load for load in loads if self.place_of(load.source) == place]

    def uses(self, place: int) -> int:
        """How often a parameter is named but in declarations of its views and in regions.

        Both say of accesses what the statements do. Each access is one use.
        """
        views = (part for view in self._views for part in (view.data, view.buffer))
        blocks = nodes(self._body, s_tir.SBlock)
        regions = (region.source for b in blocks for region in [*b.reads, *b.writes])
        named = self._names(self._body, place)
        return named - sum(self._names(part, place) for part in (*views, *regions))

    def _names(self, root: Any, place: int) -> int:
        return sum(self.place_of(variable) == place for variable in nodes(root, tvm.ir.Var))


def _analyzer_of(func: tirx.PrimFunc) -> Analyzer:
    """It knows how far loops and blocks go: a loop with one iteration is at 0."""
    analyzer = Analyzer()
    for loop in nodes(func.body, tirx.For):
        analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))
    for block in nodes(func.body, s_tir.SBlock):
        for axis in block.iter_vars:
            analyzer.bind(axis.var, axis.dom)
    return analyzer
