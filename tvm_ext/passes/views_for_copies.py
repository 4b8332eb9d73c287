"""Copies that need not be made: parts of a concatenation, and slices, as views of one buffer."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relay_passes.dataflow.buffer_lifetimes import BufferLifetimes
from tvm_ext.relay_passes.dataflow.sizes import bytes_of, element_bytes
from tvm_ext.relay_passes.spans import relax_functions
from tvm_ext.tir_schedules.analysis.copies import Copies, copies


@dataclass(frozen=True)
class _View:
    """A buffer that lies within what a variable names, from this byte on."""

    base: relax.Var
    offset: int


@dataclass
class _Views:
    """What becomes of the buffers of a function.

    ``parts`` are those that are written as parts of another buffer, by their variable; ``slices``
    those that are read as a part of another one, by the variable of the call that copied them;
    ``dropped`` the calls that are not made.
    """

    parts: dict[relax.Var, _View] = field(default_factory=dict)
    slices: dict[relax.Var, tuple[relax.Var, _View]] = field(default_factory=dict)
    dropped: set[relax.Var] = field(default_factory=set)


def views_for_copies(
    mod: tvm.IRModule,
    lives: Mapping[tvm.ir.GlobalVar, BufferLifetimes],
    planned: Mapping[tvm.ir.GlobalVar, Mapping[relax.Var, object]],
    alignment: int,
) -> tvm.IRModule:
    """The module without calls of kernels that only copy, where views do; itself for none.

    Before: ``k1(x, a)``, ``k2(x, b)``, ``concatenate(a, b, y)``
    After:  ``a = view(y, 0)``, ``b = view(y, bytes of a)``, ``k1(x, a)``, ``k2(x, b)``

    Leaves alone: buffers that are not planned; parts that would not begin at a multiple of
    ``alignment`` bytes, or that are several of the operands.
    """
    moved = {
        variable: found
        for variable, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc) and (found := copies(func)) is not None
    }
    writer = _ViewWriter(mod)
    for variable, func in relax_functions(mod).items() if moved else ():
        finder = _Finder(moved, lives[variable], planned[variable], alignment)
        views = finder.found(func)
        if views.dropped:
            writer.builder_.update_func(variable, writer.rewritten(func, views))
    return writer.builder_.get() if writer.changed else mod


class _Finder:
    def __init__(
        self,
        moved: Mapping[tvm.ir.GlobalVar, Copies],
        lives: BufferLifetimes,
        planned: Mapping[relax.Var, object],
        alignment: int,
    ) -> None:
        self._moved, self._lives, self._planned = moved, lives, planned
        self._alignment = alignment
        self._views = _Views()

    def found(self, func: relax.Function) -> _Views:
        """All views of a function."""
        for bindings in _sequences(func.body):
            here = {binding.var for binding in bindings}
            for binding in bindings:
                callee = binding.value.op if isinstance(binding.value, relax.Call) else None
                if isinstance(callee, tvm.ir.GlobalVar) and callee in self._moved:
                    self._look_at(binding, self._moved[callee], here)
        return self._views

    def _look_at(self, binding: relax.Binding, kernel: Copies, here: Collection[relax.Var]) -> None:
        arguments = binding.value.args[:]
        result = self._whole(arguments[kernel.result])
        place = self._lives.places[binding.var]
        if result is None or self._lives.used[result] != place or result not in here:
            return
        if len(arguments) != len(kernel.distances) + 1:
            return
        element = element_bytes(str(result.ty.dtype))
        offsets = {place: at * element for place, at in kernel.distances.items()}
        if any(offset % self._alignment for offset in offsets.values()):
            return
        if len(offsets) == 1:
            self._slice(binding, arguments, offsets, result)
        else:
            self._join(binding, arguments, offsets, result, here)

    def _slice(
        self,
        binding: relax.Binding,
        arguments: list[relax.Expr],
        offsets: Mapping[int, int],
        result: relax.Var,
    ) -> None:
        ((position, offset),) = offsets.items()
        base = arguments[position]
        named = self._lives.named(base)
        is_planned = len(named) == 1 and all(buffer in self._planned for buffer in named)
        if offset > 0 or not is_planned or not isinstance(base, relax.Var) or result in named:
            return
        if result not in self._views.parts:
            self._views.slices[binding.var] = result, _View(base, -offset)
            self._views.dropped |= {binding.var, result}

    def _join(
        self,
        binding: relax.Binding,
        arguments: list[relax.Expr],
        offsets: Mapping[int, int],
        result: relax.Var,
        here: Collection[relax.Var],
    ) -> None:
        parts = [self._whole(arguments[position]) for position in offsets]
        taken = self._views.parts.keys() | self._views.dropped
        if any(part is None or part in taken or part not in here for part in parts):
            return
        sizes = sum(bytes_of(arguments[position].ty) or 0 for position in offsets)
        if len({*parts, result}) != len(parts) + 1 or sizes != bytes_of(result.ty):
            return
        for part, offset in zip(parts, offsets.values(), strict=True):
            self._views.parts[part] = _View(result, offset)
        self._views.dropped.add(binding.var)

    def _whole(self, argument: relax.Expr) -> relax.Var | None:
        """The planned buffer that an argument is, in all its length."""
        named = self._lives.named(argument)
        if len(named) != 1:
            return None
        (buffer,) = named
        if buffer not in self._planned:
            return None
        size = bytes_of(buffer.ty)
        return buffer if size is not None and size == bytes_of(argument.ty) else None


def _sequences(body: relax.Expr) -> Iterator[list[relax.Binding]]:
    """The bindings of a function, and those of each branch in it, apart from each other."""
    if not isinstance(body, relax.SeqExpr):
        return
    own = [binding for block in body.blocks[:] for binding in block.bindings[:]]
    yield own
    for binding in own:
        if isinstance(binding.value, relax.If):
            yield from _sequences(binding.value.true_branch)
            yield from _sequences(binding.value.false_branch)


@mutator
class _ViewWriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.changed = False
        self._views = _Views()
        self._wholes: set[relax.Var] = set()
        self._values: dict[relax.Var, relax.Expr] = {}
        self._made: set[relax.Var] = set()

    def rewritten(self, func: relax.Function, views: _Views) -> relax.Function:
        """The function with views; a buffer of parts comes ahead of the first of them."""
        self.changed, self._views, self._made = True, views, set()
        self._wholes = {view.base for view in views.parts.values()}
        self._values = {
            binding.var: binding.value for bindings in _sequences(func.body) for binding in bindings
        }
        return self.visit_expr(func)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var = binding.var
        if var in self._views.slices:
            made, view = self._views.slices[var]
            self._bind(made, view)
        elif var in self._views.parts or var in self._wholes:
            self._allocate(var)
        elif var not in self._views.dropped:
            super().visit_var_binding_(binding)

    def _allocate(self, var: relax.Var) -> None:
        """Binds a buffer that is a part, has parts, or both; once."""
        if var in self._made:
            return
        self._made.add(var)
        view = self._views.parts.get(var)
        if view is None:
            super().visit_var_binding_(relax.VarBinding(var, self._values[var]))
            return
        self._allocate(view.base)
        self._bind(var, view)

    def _bind(self, var: relax.Var, view: _View) -> None:
        shape, dtype = self._values[var].args[0], self._values[var].args[1].value
        base = self.visit_expr(view.base)
        part = relax.op.memory.view(base, shape, dtype, tirx.const(view.offset, "int64"))
        if view.offset:
            part = relax.op.memory.ensure_zero_offset(self.builder_.emit(part, "part"))
        super().visit_var_binding_(relax.VarBinding(var, part))
