"""Fusion by cost behind TVM's: siblings as one kernel of several results, and cheap producers
computed again by each of their readers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, permutations
from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm.sym import Analyzer

from tvm_ext.compiler.kernel_work import KernelWork, kernel_work
from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cost_model import CostModel, Work, cost_model
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.hardware.targets import current_program_target
from tvm_ext.relay_passes.fuse_operators import needs_of, ordered_block, sizes_defined_by
from tvm_ext.relay_passes.graph_pass import OPAQUE, graph_pass, record_applied, record_refusal
from tvm_ext.relay_passes.name_symbolic_sizes import is_simple, without_number
from tvm_ext.relay_passes.spans import (
    describe_origin,
    origins_of,
    relax_functions,
    retyped_var,
    write_origins,
)
from tvm_ext.tir_schedules.analysis.buffer_access import nodes, runs_in_any_order
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.backend import scheduling_of
from tvm_ext.tir_schedules.inlining import inlined_blocks, inlined_schedule
from tvm_ext.tir_schedules.statements import sizes_at

NAME = "MultiOutputFusion"

# Tensors whose addresses a loop keeps in registers, of the 16 that an x86 CPU has.
_MOST_TENSORS = 10
# Sizes that a run decides count as each of these: what is to pay must pay for all.
_SAMPLED_SIZES = (1, 64, 4096)
# Readers of a cheap producer, and results of a kernel.
_MOST_TOGETHER = 4
# Letters of a kernel's name.
_LONGEST_NAME = 60


# What is looked at: the kernel calls of one dataflow block.


@dataclass(frozen=True, eq=False)
class KernelCall:
    """One ``call_tir`` of a block.

    Attributes
    ----------
    var : relax.Var
        What it is bound to.
    call : relax.Call
        The call.
    kernel : tirx.PrimFunc
        What it calls.
    """

    var: relax.Var
    call: relax.Call
    kernel: tirx.PrimFunc

    @property
    def name(self) -> str:
        """Of the kernel."""
        return str(self.call.args[0].name_hint)

    @property
    def arguments(self) -> list[relax.Expr]:
        """The tensors that it reads."""
        given = self.call.args[1]
        return list(given.fields) if isinstance(given, relax.Tuple) else [given]

    @property
    def is_data_parallel(self) -> bool:
        """Whether it computes one tensor, each element of which on its own."""
        if not isinstance(self.var.ty, relax.TensorType) or self.var.ty.shape is None:
            return False
        return _is_data_parallel(self.kernel)


class BlockGraph:
    """Who reads whom among the bindings of a dataflow block.

    Parameters
    ----------
    kernels : mapping of str to tirx.PrimFunc
        All kernels by name.
    block : relax.DataflowBlock
        The block.
    """

    def __init__(self, kernels: Mapping[str, tirx.PrimFunc], block: relax.DataflowBlock) -> None:
        self.bindings = list(block.bindings)
        self.calls: list[KernelCall] = []
        self.readers: dict[int, list[relax.Binding]] = {}
        # Those that wait for a size as well, which a cast reads from a tensor.
        self._waiting: dict[int, list[relax.Binding]] = {}
        for binding in self.bindings:
            for needed in needs_of(binding):
                self._waiting.setdefault(hash(needed), []).append(binding)
            for var in relax.analysis.free_vars(binding.value):
                self.readers.setdefault(hash(var), []).append(binding)
            value = binding.value
            is_cast = isinstance(binding, relax.MatchCast)
            if not is_cast and isinstance(value, relax.Call) and _is_call_tir(value):
                kernel = kernels[str(value.args[0].name_hint)]
                self.calls.append(KernelCall(binding.var, value, kernel))
        self._known_behind: dict[int, set[int]] = {}
        self._call_of = {hash(call.var): call for call in self.calls}

    def call(self, var: relax.Var) -> KernelCall | None:
        """The kernel call that ``var`` is bound to."""
        return self._call_of.get(hash(var))

    def kernel_readers(self, call: KernelCall) -> list[KernelCall] | None:
        """The kernels that read a result; None where something else reads it, or nobody does."""
        if not isinstance(call.var, relax.DataflowVar):
            return None
        found = [self.call(binding.var) for binding in self.readers.get(hash(call.var), ())]
        known = [reader for reader in found if reader is not None]
        return known if known and len(known) == len(found) else None

    def reaches(self, first: KernelCall, second: KernelCall) -> bool:
        """Whether the second call reads what is computed from the first, a size of it included."""
        return hash(second.var) in self._behind(first)

    def _behind(self, call: KernelCall) -> set[int]:
        """What waits for the result of a call."""
        if hash(call.var) in self._known_behind:
            return self._known_behind[hash(call.var)]
        seen: set[int] = set()
        left = [hash(call.var)]
        while left:
            for binding in self._waiting.get(left.pop(), ()):
                for made in (binding.var, *sizes_defined_by(binding)):
                    if hash(made) not in seen:
                        seen.add(hash(made))
                        left.append(hash(made))
        self._known_behind[hash(call.var)] = seen
        return seen


# Kernels are shared by many calls, and looked at anew after each fusion.
@lru_cache(maxsize=1024)
def _is_data_parallel(kernel: tirx.PrimFunc) -> bool:
    if int(kernel.attrs.get("op_pattern", 0)) == OPAQUE:
        return False
    blocks = [one for one in nodes(kernel.body, s_tir.SBlock) if str(one.name_hint) != "root"]
    return bool(blocks) and all(map(runs_in_any_order, blocks))


def _is_call_tir(value: relax.Call) -> bool:
    return isinstance(value.op, tvm.ir.Op) and str(value.op.name) == "relax.call_tir"


# Identify.


@dataclass(frozen=True, eq=False)
class Candidate:
    """Calls that may become other calls.

    Attributes
    ----------
    groups : tuple of tuples of KernelCall
        Each is to be one kernel; a call in several groups is computed in each of them.
    results : tuple of tuples of KernelCall
        Those of each group that are read outside of it.
    """

    groups: tuple[tuple[KernelCall, ...], ...]
    results: tuple[tuple[KernelCall, ...], ...]

    @property
    def calls(self) -> list[KernelCall]:
        """All of them, each once."""
        return list(dict.fromkeys(call for group in self.groups for call in group))

    @property
    def what(self) -> str:
        """In a few words, what becomes of them."""
        if len(self.groups) == 1:
            return f"one kernel with {len(self.results[0])} results"
        return f"computed again in each of {len(self.groups)} kernels"

    @property
    def key(self) -> tuple[int, ...]:
        """Tells candidates apart."""
        return tuple(hash(call.var) for group in self.groups for call in group)

    @property
    def form(self) -> tuple[Any, ...]:
        """Equal for candidates of the same kernels, which read each other and the same sizes alike:
        the steps of an unrolled loop.
        """
        places: dict[int, int] = {}
        results = {hash(call.var) for group in self.results for call in group}
        found: list[Any] = []
        for group in self.groups:
            found.append("group")
            for call in group:
                found += [hash(call.kernel), hash(call.var) in results, _form_of(call.var.ty)]
                for one in (*call.arguments, call.var):
                    is_number = tvm.ir.is_prim_expr(one)
                    found.append(_form_of_size(one) if is_number else _form_of(one.ty))
                    found.append(places.setdefault(hash(one), len(places)))
        return tuple(found)

    @property
    def where(self) -> str:
        """The operators that it is about."""
        return describe_origin(*(call.var for call in self.calls))


def _form_of(ty: Any) -> Any:
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return str(ty)
    return (str(ty.dtype), *map(_form_of_size, ty.shape))


def _form_of_size(size: Any) -> Any:
    if isinstance(size, tirx.IntImm):
        return int(size)
    return str(size), tuple(map(hash, tirx.analysis.undefined_vars(size)))


def identify(graph: BlockGraph) -> Iterator[Candidate]:
    """Cheap producers with their readers, then siblings: the most at once, then pairs.

    A producer has two to four readers, all of which compute each element on its own, as itself
    does. Siblings read a tensor in common, and none reads what is computed from another one.
    """
    for call in graph.calls:
        readers = graph.kernel_readers(call)
        if readers is None or not 2 <= len(readers) <= _MOST_TOGETHER:
            continue
        if all(one.is_data_parallel for one in (call, *readers)):
            groups = tuple((call, reader) for reader in readers)
            yield Candidate(groups, tuple((reader,) for reader in readers))
    for readers in _readers_of_a_tensor(graph):
        if 2 < len(readers) <= _MOST_TOGETHER and _are_apart(graph, readers):
            yield Candidate((tuple(readers),), (tuple(readers),))
        for pair in combinations(readers, 2):
            if _are_apart(graph, pair):
                yield Candidate((pair,), (pair,))


def _readers_of_a_tensor(graph: BlockGraph) -> Iterator[list[KernelCall]]:
    tensors = dict.fromkeys(hash(one) for call in graph.calls for one in _tensors_read(call))
    for tensor in tensors:
        found = [graph.call(binding.var) for binding in graph.readers.get(tensor, ())]
        yield [one for one in found if one is not None and one.is_data_parallel]


def _are_apart(graph: BlockGraph, calls: Sequence[KernelCall]) -> bool:
    """Whether none of the calls reads what is computed from another one."""
    return not any(graph.reaches(first, second) for first, second in permutations(calls, 2))


def _tensors_read(call: KernelCall) -> list[relax.Var]:
    return [one for one in call.arguments if isinstance(one, relax.Var)]


# Check.


@dataclass(frozen=True, eq=False)
class FusedCall:
    """A kernel for a group, with its call.

    Attributes
    ----------
    kernel : tirx.PrimFunc
        The kernel.
    tensors : list of relax.Expr
        What it is called with: tensors, then numbers.
    types : list of relax.Type
        Of its results.
    name : str
        For the kernel, where no other one has it.
    """

    kernel: tirx.PrimFunc
    tensors: list[relax.Expr]
    types: list[Any]
    name: str

    @property
    def ty(self) -> Any:
        """Of the call."""
        return self.types[0] if len(self.types) == 1 else relax.TupleType(self.types)

    def call_of(self, name: tvm.ir.GlobalVar) -> relax.Call:
        """The call, where the kernel has this name."""
        arguments = [name, relax.Tuple(self.tensors)]
        return relax.Call(tvm.ir.Op.get("relax.call_tir"), arguments, None, [self.ty])


def check(candidate: Candidate, machine: MachineDescription) -> list[FusedCall]:
    """The kernels of a candidate that may be applied and pays.

    Raises
    ------
    NotApplicable
        The reason why it may not, or does not pay.
    """
    if scheduling_of(machine).several_results is None:
        raise NotApplicable(f"for '{machine.name}' it is not known to pay")
    if len(candidate.groups) == 1:
        _check_equal_sizes(candidate.results[0])
    fused = [
        fused_call(group, results)
        for group, results in zip(candidate.groups, candidate.results, strict=True)
    ]
    for one, results in zip(fused, candidate.results, strict=True):
        _check_loops(one.kernel, results, machine)
    _check_cost(candidate.calls, fused, cost_model(machine))
    return fused


def _check_equal_sizes(results: Sequence[KernelCall]) -> None:
    first, *others = [_elements(call.var) for call in results]
    if not all(Analyzer().can_prove_equal(first, other) for other in others):
        raise NotApplicable("the results have other numbers of elements")


def _elements(var: relax.Var) -> Any:
    count: Any = tirx.const(1, "int64")
    for size in var.ty.shape:
        count = count * size
    return count


def _check_loops(
    kernel: tirx.PrimFunc, results: Sequence[KernelCall], machine: MachineDescription
) -> None:
    tensors = [param for param in kernel.params if hasattr(param, "shape")]
    if len(tensors) > _MOST_TENSORS:
        raise NotApplicable(
            f"the kernel would have {len(tensors)} tensors, whose addresses do not stay in "
            f"registers; expected {_MOST_TENSORS} at most"
        )
    in_one_nest = scheduling_of(machine).several_results
    if len(results) > 1 and in_one_nest is not None:
        in_one_nest(kernel, machine)
    elif len(inlined_blocks(kernel)) > 1:
        raise NotApplicable("the producer would stay a loop nest of its own")


def _check_cost(before: Sequence[KernelCall], after: Sequence[FusedCall], costs: CostModel) -> None:
    """What is computed again is counted where it is computed: in the loops of the reader."""
    apart = [_Priced(_work(one.kernel), one.arguments, [one.var.ty]) for one in before]
    fused = [
        _Priced(_work(inlined_schedule(one.kernel).mod["main"]), one.tensors, one.types)
        for one in after
    ]
    for size in _SAMPLED_SIZES:
        seconds, seconds_apart = (
            _seconds([one.work_at(size) for one in calls], costs) for calls in (fused, apart)
        )
        if seconds >= seconds_apart:
            raise NotApplicable(
                f"it does not pay: {seconds * 1e6:.2f} instead of {seconds_apart * 1e6:.2f} us "
                "(modelled)"
            )


def _seconds(works: Sequence[Work], costs: CostModel) -> float:
    """Modelled time of kernels that run one after the other.

    All of their bytes count for the memory that holds them: what they read in common is in a cache
    for one kernel where it is there for several.
    """
    flops, nbytes = sum(one.flops for one in works), sum(one.bytes for one in works)
    start = costs.seconds(Work(0, 0))
    return costs.seconds(Work(flops, nbytes, works[0].dtype)) + (len(works) - 1) * start


@lru_cache(maxsize=1024)
def _work(kernel: tirx.PrimFunc) -> tuple[tirx.PrimFunc, KernelWork]:
    return kernel, kernel_work(kernel)


@dataclass(frozen=True, eq=False)
class _Priced:
    """A kernel with what it is called with, in the sizes of the whole graph."""

    kernel: tuple[tirx.PrimFunc, KernelWork]
    arguments: Sequence[relax.Expr]
    results: Sequence[Any]

    def work_at(self, size: int) -> Work:
        """What the call does where each size that a run decides is ``size``."""
        func, work = self.kernel
        given: list[Any] = [
            _number_at(one, size) if tvm.ir.is_prim_expr(one) else _shape_at(one.ty, size)
            for one in self.arguments
        ]
        given += [_shape_at(ty, size) for ty in self.results]
        found = None if None in given else work.at(sizes_at(func, given))
        if found is None:
            raise NotApplicable("the sizes of a kernel do not tell what it costs")
        return found


def _shape_at(ty: Any, size: int) -> tuple[int, ...] | None:
    found = [_number_at(one, size) for one in ty.shape]
    known = tuple(one for one in found if one is not None)
    return known if len(known) == len(found) else None


def _number_at(expr: Any, size: int) -> int | None:
    values = {one: tirx.const(size, str(one.ty)) for one in tirx.analysis.undefined_vars(expr)}
    number = Analyzer().simplify(substitute(expr, values))
    return int(number) if isinstance(number, tirx.IntImm) and int(number) >= 0 else None


# One kernel of several calls, made by TVM's FuseTIR in a module of its own.


class _Sizes:
    """Names for the sizes of a group, the same one for sizes that are proved to be equal.

    Kernels have such names (NameSymbolicSizes): TVM would put what they stand for back into every
    index.
    """

    def __init__(self) -> None:
        # What each name stands for, less the number that is added to it.
        self.named: list[tuple[Any, int, tirx.Var]] = []
        # Each size that was met, and the same in names.
        self._met: list[tuple[Any, Any]] = []

    def type_of(self, ty: Any) -> Any:
        """The type of a tensor, with names for its sizes."""
        if not isinstance(ty, relax.TensorType) or ty.shape is None:
            raise NotApplicable("a kernel reads what is no tensor of a known number of dimensions")
        return relax.TensorType(relax.ShapeExpr([self.size(one) for one in ty.shape]), ty.dtype)

    def size(self, size: Any) -> Any:
        """``size`` in names, the same for sizes that are equal: 12 n is 3 n times 4."""
        if isinstance(size, tirx.IntImm):
            return size
        for known, in_names in self._met:
            if str(known.ty) == str(size.ty) and Analyzer().can_prove_equal(known, size):
                return in_names
        self._met.append((size, self._in_names(size)))
        return self._met[-1][1]

    def _in_names(self, size: Any) -> Any:
        if is_simple(size):
            return substitute(
                size, {v: self._name(v, 0) for v in tirx.analysis.undefined_vars(size)}
            )
        base, added = without_number(size)
        return self._name(base, added)

    def number(self, value: Any) -> Any:
        """A number that a kernel takes, in names for the variables in it."""
        variables = tirx.analysis.undefined_vars(value)
        return substitute(value, {one: self._name(one, 0) for one in variables})

    def _name(self, base: Any, added: int) -> Any:
        analyzer = Analyzer()
        for known, of_name, name in self.named:
            if str(known.ty) == str(base.ty) and analyzer.can_prove_equal(known, base):
                return name + (added - of_name) if added != of_name else name
        name = tirx.Var(f"size_{len(self.named)}", base.ty)
        self.named.append((base, added, name))
        return name

    def beyond(self, types: Sequence[Any]) -> dict[tirx.Var, Any]:
        """The names that stand alone on no axis of these tensors, and what they stand for."""
        known = {one for ty in types for one in relax.analysis.definable_tir_vars_in_type(ty)}
        return {
            name: base + added if added else base
            for base, added, name in self.named
            if name not in known
        }


def fused_call(group: Sequence[KernelCall], results: Sequence[KernelCall]) -> FusedCall:
    """One kernel for the calls of a group, with its call.

    Raises NotApplicable where TVM makes none.
    """
    given = _taken_by(group)
    sizes = _Sizes()
    params = [relax.Var(f"p{place}", sizes.type_of(one.ty)) for place, one in enumerate(given)]
    builder = relax.BlockBuilder()
    own = dict(zip(map(hash, given), params, strict=True))
    body = _body(group, results, own, sizes, builder)
    outside: dict[Any, Any] = dict(zip(params, given, strict=True))
    beyond = sizes.beyond([one.ty for one in params])
    if beyond:
        params.append(relax.Var("sizes", relax.ShapeType(list(beyond))))
        outside.update(beyond)
    func = relax.Function(params, body, body.body.ty, True).with_attr("Primitive", True)
    short = "_".join(["fused", *(call.name.removeprefix("fused_") for call in group)])
    name = builder.add_func(relax.utils.copy_with_new_vars(func), short[:_LONGEST_NAME].rstrip("_"))
    with builder.function("main", params):
        builder.emit_func_output(builder.emit(relax.Call(name, params)))
    try:
        mod = relax.transform.FuseTIR()(builder.get())
    except (tvm.error.InternalError, ValueError, TypeError) as error:
        raise NotApplicable("TVM cannot make one kernel of it") from error
    call = _only_call(mod["main"])
    fields = [substitute(one, outside) for one in call.args[1].fields]
    types = [one.var.ty for one in results]
    return FusedCall(mod[call.args[0]], fields, types, str(name.name_hint))


def again(
    fused: FusedCall,
    before: Sequence[KernelCall],
    group: Sequence[KernelCall],
    results: Sequence[KernelCall],
) -> FusedCall:
    """The call for a group of the same form as that which ``fused`` was made ``before`` for."""
    own = dict(zip(map(hash, _taken_by(before)), _taken_by(group), strict=True))
    tensors = [own.get(hash(one), one) for one in fused.tensors]
    return replace(fused, tensors=tensors, types=[one.var.ty for one in results])


def _taken_by(group: Sequence[KernelCall]) -> list[relax.Expr]:
    """The tensors that calls of a group take from outside of it, each once."""
    inside = {hash(call.var) for call in group}
    found: list[relax.Expr] = []
    for one in (argument for call in group for argument in call.arguments):
        is_known = hash(one) in inside or any(known.same_as(one) for known in found)
        if not is_known and not tvm.ir.is_prim_expr(one):
            found.append(one)
    return found


def _body(
    group: Sequence[KernelCall],
    results: Sequence[KernelCall],
    given: Mapping[int, relax.Var],
    sizes: _Sizes,
    builder: relax.BlockBuilder,
) -> relax.SeqExpr:
    """The calls of a group, as FuseOps would write them; ``given`` has parameters by hash."""
    known = dict(given)
    bindings: list[relax.Binding] = []
    for call in group:
        if len(call.call.args) > 2:
            raise NotApplicable("a kernel takes sizes as a shape")
        fields = [
            sizes.number(one) if tvm.ir.is_prim_expr(one) else known[hash(one)]
            for one in call.arguments
        ]
        ty = sizes.type_of(call.var.ty)
        name = builder.add_func(call.kernel, call.name)
        value = relax.Call(call.call.op, [name, relax.Tuple(fields)], None, [ty])
        is_result = len(results) == 1 and call is results[0]
        var = (relax.Var if is_result else relax.DataflowVar)(str(call.var.name), ty)
        bindings.append(relax.VarBinding(var, value))
        known[hash(call.var)] = var
    made = [known[hash(call.var)] for call in results]
    output = made[0]
    if len(made) > 1:
        output = relax.Var("results", relax.TupleType([one.ty for one in made]))
        bindings.append(relax.VarBinding(output, relax.Tuple(made)))
    return relax.SeqExpr([relax.DataflowBlock(bindings)], output)


def _only_call(func: relax.Function) -> relax.Call:
    values = [binding.value for block in func.body.blocks for binding in block.bindings]
    calls = [one for one in values if isinstance(one, relax.Call) and _is_call_tir(one)]
    if len(calls) != 1 or len(calls[0].args) != 2:
        raise NotApplicable("TVM does not make one kernel of it")
    return calls[0]


# Apply.


def apply(
    candidate: Candidate,
    fused: Sequence[tuple[tvm.ir.GlobalVar, FusedCall]],
    block: relax.DataflowBlock,
    known: set[tirx.Var],
) -> tuple[relax.DataflowBlock, dict[relax.Var, tuple[str, ...]]]:
    """The block with the fused calls in place of the candidate's, and the origins of their results.

    ``known`` has the sizes that are there ahead of the block.
    """
    replaced = {hash(call.var) for call in candidate.calls}
    bindings = [one for one in block.bindings if hash(one.var) not in replaced]
    origins: dict[relax.Var, tuple[str, ...]] = {}
    for (name, one), group, results in zip(fused, candidate.groups, candidate.results, strict=True):
        value = one.call_of(name)
        merged = origins_of(*(call.var for call in group))
        if len(results) == 1:
            bindings.append(relax.VarBinding(results[0].var, value))
            origins[results[0].var] = merged
            continue
        together = retyped_var(relax.DataflowVar("results", one.ty), one.ty, merged)
        bindings.append(relax.VarBinding(together, value))
        bindings += [
            relax.VarBinding(call.var, relax.TupleGetItem(together, place))
            for place, call in enumerate(results)
        ]
    return ordered_block(relax.DataflowBlock(bindings), known), origins


class _Fusion:
    """The three phases, one candidate after the other, until none is left."""

    def __init__(self, mod: tvm.IRModule, machine: MachineDescription) -> None:
        self.machine = machine
        self.builder = relax.BlockBuilder(mod)
        self.kernels = {
            str(name.name_hint): func
            for name, func in mod.functions.items()
            if isinstance(func, tirx.PrimFunc)
        }
        self.origins: dict[relax.Var, tuple[str, ...]] = {}
        self.tried: set[tuple[int, ...]] = set()
        # By form, why it was refused, or a candidate with its kernels.
        self.refused: dict[tuple[Any, ...], str] = {}
        self.fused: dict[tuple[Any, ...], tuple[Candidate, list[FusedCall]]] = {}

    def function(self, func: relax.Function) -> relax.Function:
        """``func`` itself where nothing is fused."""
        if not isinstance(func.body, relax.SeqExpr):
            return func
        known = {v for param in func.params for v in relax.analysis.tir_vars_in_type(param.ty)}
        blocks = []
        for block in func.body.blocks:
            is_dataflow = isinstance(block, relax.DataflowBlock)
            blocks.append(self.block(block, known) if is_dataflow else block)
            for binding in block.bindings:
                known.update(relax.analysis.tir_vars_in_type(binding.var.ty))
        if all(new.same_as(old) for new, old in zip(blocks, func.body.blocks, strict=True)):
            return func
        body = relax.SeqExpr(blocks, func.body.body)
        return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)

    def block(self, block: relax.DataflowBlock, known: set[tirx.Var]) -> relax.DataflowBlock:
        """``block`` itself where nothing is fused."""
        while True:
            graph = BlockGraph(self.kernels, block)
            found = next(filter(None, map(self._checked, identify(graph))), None)
            if found is None:
                return block
            candidate, fused = found
            named = [(self._named(one), one) for one in fused]
            block, origins = apply(candidate, named, block, set(known))
            self.origins.update(origins)

    def _checked(self, candidate: Candidate) -> tuple[Candidate, list[FusedCall]] | None:
        if candidate.key in self.tried:
            return None
        self.tried.add(candidate.key)
        form = candidate.form
        try:
            if form in self.refused:
                raise NotApplicable(self.refused[form])
            if form not in self.fused:
                self.fused[form] = candidate, check(candidate, self.machine)
            known, made = self.fused[form]
            parts = zip(made, known.groups, candidate.groups, candidate.results, strict=True)
            fused = [again(*part) for part in parts]
        except NotApplicable as refused:
            self.refused[form] = refused.reason
            record_refusal(NAME, candidate.where, refused.reason)
            return None
        record_applied(NAME, candidate.where, candidate.what)
        return candidate, fused

    def _named(self, fused: FusedCall) -> tvm.ir.GlobalVar:
        name = self.builder.add_func(fused.kernel, fused.name)
        self.kernels[str(name.name_hint)] = fused.kernel
        return name


@graph_pass
class MultiOutputFusion:
    """Fuses what FuseOps leaves apart, where the cost model says that it pays.

    Before: ``a = multiply_subtract(x, y)``; ``b = multiply_add(x, y)``
    After:  ``a, b = multiply_subtract_multiply_add(x, y)``, whose one loop stores both

    Before: ``m = cast(x)``; ``a = multiply(m, y)``; ``b = add(m, z)``
    After:  ``a = cast_multiply(x, y)``; ``b = cast_add(x, z)``

    It works in three phases, for one candidate after the other. ``identify`` finds kernels that
    compute each element on its own: siblings, which read a tensor in common, and producers of two
    to four readers. ``check`` says whether they may be fused (no path from one sibling to another,
    loops that are proved to be equal also where sizes are symbolic, a backend that stores several
    results in one loop) and whether it pays (bytes that are not moved, kernels that are not
    started, against work that is repeated). ``apply`` puts the kernel that FuseTIR makes of them in
    their place.

    Leaves alone: kernels that reduce, branch or transpose; siblings without a tensor in common;
    programs for GPUs, for which it was not measured.

    Run after: FuseTIR, NameSymbolicSizes and RewriteDataflowReshape. Run before: ScheduleKernels.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when nothing is fused."""
        machine = current_program_target()
        if machine is None:
            return mod
        fusion = _Fusion(mod, machine)
        changed = {
            name: new
            for name, func in relax_functions(mod).items()
            if (new := fusion.function(func)) is not func
        }
        if not changed:
            return mod
        for name, func in changed.items():
            fusion.builder.update_func(name, func)
        fused = relax.transform.DeadCodeElimination()(fusion.builder.get())
        return write_origins(fused, fusion.origins)
