"""A schedule of isl as loops of TIR.

isl writes a tree of loops with bounds, conditions and calls of statements; each becomes the node
of TIR that means the same. Marks in the schedule say which loops are parallel and which are
vectors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import islpy as isl
import tvm
from tvm import tirx
from tvm_ffi import structural_map

from tvm_ext.polyhedral.iteration_domains import KernelDomain, LocalArray, Statement
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent
from tvm_ext.tir_schedules.statements import in_root_block, sequence

# Marks above the band of a loop; behind a colon a mark has a number of its own.
PARALLEL = "parallel"
VECTOR = "vector"
UNROLLED = "unrolled"

# Vectors of a row whose sums are in registers at a time.
VECTORS = 2


# islpy's own description of its names leaves out those that are words of Python.
_LOOP, _BRANCH = (getattr(isl.ast_node_type, name) for name in ("for_", "if_"))
_and, _or = (getattr(isl.ast_expr_op_type, name) for name in ("and_", "or_"))


@dataclass(frozen=True)
class CodeOptions:
    """How loops are written.

    Attributes
    ----------
    threads : int
        Iterations of a parallel loop are dealt out to so many threads in turn, since those of a
        triangle are not equally long.
    lanes : int
        Elements of a vector; 1 for no vectors.
    """

    threads: int = 1
    lanes: int = 1


def generated_kernel(
    kernel: KernelDomain, schedule: isl.Schedule, options: CodeOptions | None = None
) -> tirx.PrimFunc:
    """The kernel with the loops of ``schedule``, in a root block."""
    writer = _Writer(kernel, options or CodeOptions(), _marked_loops(schedule))
    build = isl.AstBuild.from_context(isl.Set.read_from_str(kernel.context, "{ : }"))
    body = writer.statement(build.node_from_schedule(schedule))
    arrays = [tirx.AllocBuffer(array) for array in writer.arrays.values()]
    return kernel.func.with_body(in_root_block(sequence([*arrays, body])))


def _marked_loops(schedule: isl.Schedule) -> dict[str, str]:
    """The name of the loop that each mark is meant for.

    isl leaves out loops of one iteration, and a mark is then above the loop inside of it.
    """
    found: dict[str, str] = {}

    def look(node: isl.ScheduleNode) -> bool:
        if node.get_type() == isl.schedule_node_type.mark:
            found[str(node.mark_get_id().get_name())] = f"c{node.get_schedule_depth()}"
        return True

    schedule.get_root().foreach_descendant_top_down(look)
    return found


class _Writer:
    def __init__(
        self, kernel: KernelDomain, options: CodeOptions, marked_loops: dict[str, str]
    ) -> None:
        self._kernel = kernel
        self._marked_loops = marked_loops
        self._options = options
        self._dtype = _loop_dtype(kernel)
        self._variables: dict[str, Any] = {
            name: var.astype(self._dtype) for name, var in kernel.parameters.variables.items()
        }
        self._lowest: dict[str, list[Any]] = {}
        self.arrays = {local.name: self._expanded(local) for local in kernel.local_arrays}
        self._locals = {hash(local.buffer): local for local in kernel.local_arrays}

    # Arrays.

    def _expanded(self, local: LocalArray) -> Any:
        """One copy of an array for each iteration of the loops around its allocation."""
        sizes = []
        self._lowest[local.name] = []
        for number in range(len(local.loops)):
            low, high = self._range(local, number)
            self._lowest[local.name].append(low)
            sizes.append(_simplified(high - low + tirx.const(1, self._dtype)))
        shape = [*sizes, *local.buffer.shape]
        return tirx.decl_buffer(shape, str(local.buffer.dtype), str(local.buffer.name))

    def _range(self, local: LocalArray, number: int) -> tuple[Any, Any]:
        """The first and last iteration, in any run, of one of the loops around an allocation."""
        whole: isl.Set | None = None
        for statement in self._kernel.statements:
            for access in statement.accesses:
                if access.buffer == local.name:
                    copies = access.relation.range().project_out(
                        isl.dim_type.set,
                        len(local.loops),
                        access.relation.dim(isl.dim_type.out) - len(local.loops),
                    )
                    whole = copies if whole is None else whole.union(copies)
        if whole is None:
            return tirx.const(0, self._dtype), tirx.const(0, self._dtype)
        build = isl.AstBuild.from_context(whole.params())
        ends = (whole.dim_min(number), whole.dim_max(number))
        low, high = (self.value(build.expr_from_pw_aff(end)) for end in ends)
        return low, high

    # Loops.

    def statement(self, node: isl.AstNode, mark: str = "") -> tirx.Stmt:
        """The statement of TIR for a node of isl's tree."""
        kind = node.get_type()
        if kind == isl.ast_node_type.mark:
            return self.statement(node.mark_get_node(), str(node.mark_get_id().get_name()))
        if kind == _LOOP:
            return self._loop(node, mark)
        if kind == isl.ast_node_type.block:
            children = node.block_get_children()
            parts = [
                self.statement(children.get_at(number), mark)
                for number in range(children.n_ast_node())
            ]
            return sequence(parts)
        if kind == _BRANCH:
            holds = self.value(node.if_get_cond())
            other = (
                self.statement(node.if_get_else_node(), mark) if node.if_has_else_node() else None
            )
            return tirx.IfThenElse(holds, self.statement(node.if_get_then_node(), mark), other)
        return self._call(node.user_get_expr())

    def _loop(self, node: isl.AstNode, mark: str) -> tirx.Stmt:
        name = str(node.for_get_iterator().get_id().get_name())
        # isl adds a number where a size has that name.
        is_meant = self._marked_loops.get(mark) == name.split("_")[0]
        mark = mark.split(":")[0] if is_meant else ""
        low = self.value(node.for_get_init())
        if node.for_is_degenerate():
            return self._inside(name, low, node.for_get_body())
        step = int(node.for_get_inc().get_val().to_python())
        condition = node.for_get_cond()
        end = self.value(condition.get_op_arg(1))
        if condition.get_op_type() == isl.ast_expr_op_type.le:
            end = end + self._number(1)
        count = end - low
        if step != 1:
            count = tirx.floordiv(count + self._number(step - 1), self._number(step))
        count = _simplified(count)

        def body(number: Any) -> tirx.Stmt:
            return self._inside(
                name, _simplified(low + number * self._number(step)), node.for_get_body()
            )

        if mark == PARALLEL and self._options.threads > 1:
            return self._dealt_out(name, count, body)
        return self._counted(name, count, body, _kind_of(mark, count, self._options.lanes))

    def _counted(
        self,
        name: str,
        count: Any,
        body: Callable[[Any], tirx.Stmt],
        kind: Any = tirx.ForKind.SERIAL,
    ) -> tirx.Stmt:
        var = tirx.Var(name, self._dtype)
        return tirx.For(var, self._number(0), count, kind, body(var))

    def _dealt_out(self, name: str, count: Any, body: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
        """Thread ``t`` of ``n`` runs the iterations ``t``, ``t + n``, and so on."""
        threads = self._number(self._options.threads)

        def share(thread: Any) -> tirx.Stmt:
            own = tirx.floordiv(count - thread + threads - self._number(1), threads)
            return self._counted(name, own, lambda turn: body(thread + turn * threads))

        return self._counted(f"{name}_thread", threads, share, tirx.ForKind.PARALLEL)

    def _inside(self, name: str, value: Any, body: isl.AstNode) -> tirx.Stmt:
        before = self._variables.get(name)
        self._variables[name] = value
        found = self.statement(body)
        if before is not None:
            self._variables[name] = before
        return found

    # Statements.

    def _call(self, call: isl.AstExpr) -> tirx.Stmt:
        """The store of a statement at the iteration that isl calls it with."""
        statement = self._kernel.statement(str(call.get_op_arg(0).get_id().get_name()))
        values = {
            hash(loop.loop_var): self.value(call.get_op_arg(number + 1)).astype(
                str(loop.loop_var.ty)
            )
            for number, loop in enumerate(statement.loops)
        }
        return self._at(statement, values)

    def _at(self, statement: Statement, values: dict[int, Any]) -> tirx.Stmt:
        def of_loop(var: Any) -> Any:
            return values.get(hash(var), var)

        store = structural_map(statement.store, (tvm.ir.Var, of_loop))
        if not self._locals:
            return store

        def load(node: Any) -> Any:
            return self._local_load(node, values)

        store = structural_map(store, (tvm.ir.TensorLoad, load))
        local = self._locals.get(hash(store.buffer))
        if local is None:
            return store
        indices = [*self._copy(local, values), *store.indices]
        return tirx.BufferStore(self.arrays[local.name], store.value, indices)

    def _local_load(self, load: Any, values: dict[int, Any]) -> Any:
        local = self._locals.get(hash(load.source))
        if local is None:
            return load
        indices = [*self._copy(local, values), *load.indices]
        return tirx.BufferLoad(self.arrays[local.name], indices)

    def _copy(self, local: LocalArray, values: dict[int, Any]) -> list[Any]:
        """The indices of the copy of an array that an iteration has."""
        places = [values[hash(loop.loop_var)].astype(self._dtype) for loop in local.loops]
        lowest = self._lowest[local.name]
        return [_simplified(place - low) for place, low in zip(places, lowest, strict=True)]

    # Expressions.

    def _number(self, value: int) -> Any:
        return tirx.const(value, self._dtype)

    def value(self, expr: isl.AstExpr) -> Any:
        """An expression of isl's tree."""
        kind = expr.get_type()
        if kind == isl.ast_expr_type.int:
            return self._number(int(expr.get_val().to_python()))
        if kind == isl.ast_expr_type.id:
            return self._variables[str(expr.get_id().get_name())]
        arguments = [self.value(expr.get_op_arg(n)) for n in range(expr.get_op_n_arg())]
        return _combined(expr.get_op_type(), arguments)


def _kind_of(mark: str, count: Any, lanes: int) -> Any:
    """How a loop runs: as vectors or unrolled where it has as many iterations as registers hold."""
    length = static_extent(count)
    if mark == VECTOR and lanes > 1 and length in (lanes, VECTORS * lanes):
        return tirx.ForKind.VECTORIZED
    if mark == UNROLLED and length is not None and length <= _MOST_UNROLLED:
        return tirx.ForKind.UNROLLED
    return tirx.ForKind.SERIAL


_MOST_UNROLLED = 8


def _combined(operator: int, arguments: Sequence[Any]) -> Any:
    if operator == isl.ast_expr_op_type.minus:
        return tirx.const(0, str(arguments[0].ty)) - arguments[0]
    if operator in (isl.ast_expr_op_type.cond, isl.ast_expr_op_type.select):
        return tirx.Select(*arguments)
    combine = _OPERATORS[operator]
    found = arguments[0]
    for argument in arguments[1:]:
        found = combine(found, argument)
    return found


_OPERATORS: dict[Any, Callable[[Any, Any], Any]] = {
    isl.ast_expr_op_type.add: lambda a, b: a + b,
    isl.ast_expr_op_type.sub: lambda a, b: a - b,
    isl.ast_expr_op_type.mul: lambda a, b: a * b,
    isl.ast_expr_op_type.max: tirx.max,
    isl.ast_expr_op_type.min: tirx.min,
    # isl says of the first and the last that nothing is left, or that nothing is negative.
    isl.ast_expr_op_type.div: tirx.floordiv,
    isl.ast_expr_op_type.fdiv_q: tirx.floordiv,
    isl.ast_expr_op_type.pdiv_q: tirx.floordiv,
    isl.ast_expr_op_type.pdiv_r: tirx.floormod,
    isl.ast_expr_op_type.zdiv_r: tirx.floormod,
    _and: tirx.And,
    isl.ast_expr_op_type.and_then: tirx.And,
    _or: tirx.Or,
    isl.ast_expr_op_type.or_else: tirx.Or,
    isl.ast_expr_op_type.eq: lambda a, b: tirx.EQ(a, b),
    isl.ast_expr_op_type.lt: lambda a, b: tirx.LT(a, b),
    isl.ast_expr_op_type.le: lambda a, b: tirx.LE(a, b),
    isl.ast_expr_op_type.gt: lambda a, b: tirx.GT(a, b),
    isl.ast_expr_op_type.ge: lambda a, b: tirx.GE(a, b),
}


def _simplified(expr: Any) -> Any:
    return tvm.sym.Analyzer().simplify(expr)


def _loop_dtype(kernel: KernelDomain) -> str:
    """The type of loop variables: that of the kernel's own, the wider one where there are two."""
    found = {str(loop.loop_var.ty) for one in kernel.statements for loop in one.loops}
    return "int64" if "int64" in found else "int32"
