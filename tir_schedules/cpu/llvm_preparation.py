"""Last changes of kernels before LLVM makes code of them: what they promise of the memory of their
arguments, what they check of them, look-ups and rounding, and loops that fill with one value.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cache, reduce
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import SBlockRealize
from tvm_ffi import structural_map

from tvm_ext.configs.errors import CONTRADICTING_SIZES
from tvm_ext.hardware.cpu.description import llvm_features
from tvm_ext.hardware.tvm_compat import walk
from tvm_ext.tir_schedules.analysis.buffer_access import (
    among,
    element_bytes,
    flat_address,
    is_compact,
    is_looked_up,
    nodes,
    static_extent,
    static_product,
)
from tvm_ext.tir_schedules.statements import (
    FlatViews,
    buffer_data_operator,
    changed_block,
    sequence,
)

# Kernels with one buffer say that their buffers do not overlap, which all others have said.
#
# TVM's code generator for CPUs declares all functions of a module first, and then takes what the
# last of them, by name, says of overlapping for all of them. The function that computes symbolic
# sizes says nothing: every kernel with a name before ``shape_func`` came without that promise,
# and LLVM left its loops scalar.

_NO_ALIAS = "tirx.noalias"


@tirx.transform.prim_func_pass(opt_level=0, name="NoAliasOfLoneArguments")
class NoAliasOfLoneArguments:
    """Functions of one buffer at most are marked: it overlaps with no other one.

    Before: ``shape_func(H)``
    After:  ``shape_func(H)`` with ``tirx.noalias``

    Leaves alone: functions of several buffers, of which their writer has to know.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Functions that say something already stay as they are."""
        if (func.attrs is not None and _NO_ALIAS in func.attrs) or len(func.params) > 1:
            return func
        return func.with_attr(_NO_ALIAS, True)


# Arrays of a few KiB lie on the stack, where LLVM may keep them in registers.
#
# TVM asks a pool of the thread for an array of one KiB or more, whenever control reaches it, and
# 256 floats that are transposed in registers are one KiB.

# Of one array, and of all in a kernel: a thread of a C program may have a stack of 256 KiB.
_ARRAY_BYTES = 8192
_STACK_BYTES = 1 << 16
# TVM's own name for it, transform::kDisableLowerTVMBuiltin. StorageRewrite drops annotations.
STAYS_ON_STACK = "disable_lower_builtin"


@tirx.transform.prim_func_pass(opt_level=0, name="ArraysOnStack")
class ArraysOnStack:
    """Arrays of known size, up to 8 KiB, are left where TVM would ask a pool for them.

    Before: ``tile: float32[256]``, for which TVM calls ``TVMBackendAllocWorkspace``
    After:  ``tile: float32[256]`` with ``disable_lower_builtin``

    Leaves alone: kernels whose arrays together are too large for a stack.

    Run after: StorageRewrite. Run before: LowerTVMBuiltin.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Functions without such arrays stay as they are."""
        small = {
            node.buffer: size
            for node in nodes(func.body, tirx.AllocBuffer)
            if (size := _small_bytes(node.buffer))
        }
        if not small or sum(small.values()) > _STACK_BYTES:
            return func

        def kept(node: tirx.AllocBuffer) -> tirx.Stmt:
            if node.buffer not in small:
                return node
            stays = {STAYS_ON_STACK: tirx.const(1, "int32")}
            return tirx.AllocBuffer(node.buffer, annotations={**dict(node.annotations), **stays})

        return func.with_body(structural_map(func.body, (tirx.AllocBuffer, kept)))


def _small_bytes(array: tirx.Buffer) -> int:
    """Bytes of an array that may lie on the stack; zero for others."""
    size = (static_product(array.shape) or 0) * element_bytes(array)
    return size if size <= _ARRAY_BYTES else 0


# Kernels whose accesses are nearly all to arrays of one dimension reach the rest by flat views.
#
# To make an array flat, TVM looks for a simpler form of every index, of flat arrays as well, by all
# loops and conditions around it: 250 us each in a symbolic Winograd convolution, which keeps 1,500
# vectors in arrays of their own and reads twelve of its weights.

# Of all accesses, those that are worth it: an address takes longer to write here than in TVM.
_FEW = 1 / 20


@tirx.transform.prim_func_pass(opt_level=0, name="FlattenFewAccesses")
class FlattenFewAccesses:
    """Accesses of parameters of several dimensions through flat views, where these are few.

    Before: ``registers[0:16] = x[i, j, 0:16]``
    After:  ``flat = x.view(n * m * 16); registers[0:16] = flat[(i * m + j) * 16 + 0:16]``

    Leaves alone: kernels in which FlattenBuffer has more to do, or another array to make flat.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Kernels whose loops are written by hand stay as they are."""
        accesses, passed = _accesses(func), _passed_arrays(func)
        params = [array for array in accesses if among(array, func.params)]
        few = sum(accesses[param] for param in params) <= _FEW * accesses.total()
        is_flat = all(_is_flat(array) or among(array, params) for array in accesses)
        plain = all(is_compact(p, symbolic_sizes=True) and p not in passed for p in params)
        if not (params and few and is_flat and plain) or not isinstance(func.body, SBlockRealize):
            return func
        views = FlatViews(symbolic_sizes=True)

        def load(node: tvm.ir.TensorLoad) -> tvm.ir.Expr:
            if not among(node.source, params):
                return node
            address = flat_address(node.source, node.indices)
            return tirx.BufferLoad(views.of(node.source), [address])

        def store(node: tirx.BufferStore) -> tirx.Stmt:
            if not among(node.buffer, params):
                return node
            address = flat_address(node.buffer, node.indices)
            return tirx.BufferStore(views.of(node.buffer), node.value, [address])

        root = func.body.block
        body = structural_map(root.body, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)])
        root = changed_block(root, body=sequence([*views.declarations(func), body]))
        return func.with_body(SBlockRealize([], func.body.predicate, root))


def has_flat_arrays(func: tirx.PrimFunc) -> bool:
    """Whether each access is to a view or an array of one dimension, and none to a parameter."""
    accessed = [*_accesses(func), *_passed_arrays(func)]
    return all(_is_flat(array) and not among(array, func.params) for array in accessed)


def _accesses(func: tirx.PrimFunc) -> Counter[Any]:
    """How often each array is read or written."""
    loads = (load.source for load in nodes(func.body, tvm.ir.TensorLoad))
    return Counter(loads) + Counter(store.buffer for store in nodes(func.body, tirx.BufferStore))


def _passed_arrays(func: tirx.PrimFunc) -> set[Any]:
    """Arrays that a call takes whole, with indices beside them: masked loads and stores."""
    return {
        arg
        for call in nodes(func.body, tvm.ir.Call)
        if not call.op.same_as(buffer_data_operator())
        for arg in call.args
        if isinstance(arg, tvm.ir.Var) and isinstance(arg.ty, tirx.BufferType)
    }


def _is_flat(array: Any) -> bool:
    return len(array.shape) == 1 and not array.strides and static_extent(array.elem_offset) == 0


# Kernels take tensors that begin anywhere, so that a caller's arrays are read where they lie.
#
# TVM promises LLVM that each argument begins at a multiple of 64 bytes. NumPy's arrays begin at
# multiples of 16, slices of them anywhere: they would have to be copied.

_PROMISE = "storage_alignment"


@tirx.transform.prim_func_pass(opt_level=0, name="UnalignedArguments")
class UnalignedArguments:
    """Takes back the promise that arguments begin at a multiple of 64 bytes.

    Before: ``with T.attr(x, "storage_alignment", 64): body``
    After:  ``body``, in which LLVM knows that an argument is aligned to its elements

    Loads and stores of vectors that expect nothing have been as fast as those for aligned memory
    since AVX, where the memory is aligned.

    Leaves alone: buffers that a kernel allocates, which are aligned.

    Run after: MakePackedAPI, which writes the promises.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Functions that were promised nothing stay as they are."""
        return func.with_body(structural_map(func.body, (tirx.AttrStmt, _without_promise)))


def _without_promise(node: tirx.AttrStmt) -> tirx.Stmt:
    return node.body if node.attr_key == _PROMISE else node


# Kernels do not look at what the virtual machine knows of their arguments, and at the rest at once.
#
# TVM has each kernel check the kind, type, rank, device and memory of each argument, which is most
# of the code of a small one. The virtual machine checks these of a model's inputs, and makes all
# else itself. The checks of sizes and strides each raise an error of their own: half of the code
# that is left of a model of small kernels.

# Of a DLTensor, include/tvm/tirx/builtin.h, "TVMStructFieldKind": data, ndim, the three parts of a
# type, the number and the kind of the device. Sizes, strides and the offset stay checked.
_KNOWN_FIELDS = frozenset({1, 4, 5, 6, 7, 9, 10})


@tirx.transform.prim_func_pass(opt_level=0, name="JoinArgumentChecks")
class JoinArgumentChecks:
    """One check of all sizes, strides and offsets, and none of what a caller's types say already.

    Before: ``assert x.ndim == 2; assert x.shape[0] == n; assert x.shape[1] == 24``
    After:  ``assert x.shape[0] == n and x.shape[1] == 24``

    Leaves alone: the checks of the kernel itself.

    Run after: MakePackedAPI, which writes the checks.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Functions without such checks stay as they are."""
        return func.with_body(structural_map(func.body, (tirx.SeqStmt, _with_one_check)))


def _with_one_check(statements: tirx.SeqStmt) -> tirx.Stmt:
    others: list[tirx.Stmt] = []
    asked: list[tvm.ir.Expr] = []
    last = None
    for statement in statements:
        conditions = _argument_conditions(statement)
        if conditions is None:
            others.append(statement)
            continue
        asked += conditions
        last = len(others)
    if last is None:
        return statements
    if asked:
        message = [tvm.ir.StringImm(CONTRADICTING_SIZES)]
        check = tirx.AssertStmt(reduce(tirx.And, asked), tvm.ir.StringImm("ValueError"), message)
        others.insert(last, check)
    return sequence(others)


def _argument_conditions(statement: tirx.Stmt) -> list[tvm.ir.Expr] | None:
    """What is still to be asked of a check of arguments; None for other statements."""
    if isinstance(statement, tirx.IfThenElse) and statement.else_case is None:
        inner = _argument_conditions(statement.then_case)
        if inner is None:
            return None
        true = tirx.const(True, "bool")
        # What is read of strides that are not there would end the process.
        return [tirx.if_then_else(statement.condition, one, true) for one in inner]
    if not isinstance(statement, tirx.AssertStmt):
        return None
    calls = nodes(statement.condition, tvm.ir.Call)
    fields = {int(call.args[2]) for call in calls if call.op == _struct_get()}
    is_of_types = str(statement.error_kind.value) == "TypeError"
    if is_of_types or (fields and fields <= _KNOWN_FIELDS):
        return []
    return [statement.condition] if fields else None


@cache
def _struct_get() -> tvm.ir.Op:
    return tvm.ir.Op.get("tirx.tvm_struct_get")


# Tables of bytes are looked up for all lanes at once.
#
# LLVM loads each lane for itself. AVX512-VBMI permutes the bytes of two registers by those of a
# third: two such instructions go through all of a table of 256, and the highest bit of an index
# says which of the two has found it.

_TABLE, _REGISTER_BYTES = 256, 64
_PERMUTATION = "llvm.x86.avx512.vpermi2var.qi.512"


@tirx.transform.prim_func_pass(opt_level=0, name="LookUpInRegisters")
class LookUpInRegisters:
    """Reads of a table of 256 bytes at vectors of bytes become permutations of registers.

    Before: ``y = table[int32x32(x)]``
    After:  ``y = select(x < 128, permute(table[0:64], x, table[64:128]), permute(...))``

    Leaves alone: vectors of an odd number of lanes; CPUs without AVX512-VBMI.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Kernels without such a table stay as they are."""
        if not any(map(_is_look_up, nodes(func.body, tvm.ir.TensorLoad))):
            return func
        if "avx512vbmi" not in _features_of(func):
            return func
        return func.with_body(structural_map(func.body, (tvm.ir.TensorLoad, _permuted)))


def _is_look_up(load: tvm.ir.TensorLoad) -> bool:
    """Whether all lanes of an index are bytes, and the table has a number for each."""
    if len(load.indices) != 1 or not is_looked_up(load.source, load.indices[0]):
        return False
    table, kind = str(load.source.dtype), tvm.DataType(str(load.indices[0].value.ty))
    is_of_bytes = table in ("uint8", "int8") and kind == tvm.DataType(f"uint8x{kind.lanes}")
    return is_of_bytes and (kind.lanes in (8, 16, 32) or kind.lanes % _REGISTER_BYTES == 0)


def _permuted(load: tvm.ir.TensorLoad) -> tvm.ir.Expr:
    if not _is_look_up(load):
        return load
    places = load.indices[0].value
    lanes = tvm.DataType(str(places.ty)).lanes
    if lanes <= _REGISTER_BYTES:
        whole = _lanes_of([places] * (_REGISTER_BYTES // lanes), 0, _REGISTER_BYTES)
        found = _lanes_of([_permuted_register(load.source, whole)], 0, lanes)
    else:
        starts = range(0, lanes, _REGISTER_BYTES)
        pieces = (_lanes_of([places], start, _REGISTER_BYTES) for start in starts)
        found = _lanes_of([_permuted_register(load.source, piece) for piece in pieces], 0, lanes)
    return found if str(load.source.dtype) == "uint8" else tirx.reinterpret(str(load.ty), found)


def _permuted_register(table: tirx.Buffer, places: tvm.ir.Expr) -> tvm.ir.Expr:
    """The bytes of ``table`` at 64 places."""
    one, kind = tirx.const(1, "int32"), f"uint8x{_REGISTER_BYTES}"
    rows = [
        tirx.BufferLoad(table, [tirx.Ramp(tirx.const(first, "int32"), one, _REGISTER_BYTES)])
        for first in range(0, _TABLE, _REGISTER_BYTES)
    ]
    lower, upper = (
        tirx.call_llvm_pure_intrin(kind, _PERMUTATION, rows[n], places, rows[n + 1]) for n in (0, 2)
    )
    half = tirx.Broadcast(tirx.const(_TABLE // 2, "uint8"), _REGISTER_BYTES)
    return tirx.Select(tirx.LT(places, half), lower, upper)


def _lanes_of(vectors: list[tvm.ir.Expr], first: int, count: int) -> tvm.ir.Expr:
    """``count`` lanes of several vectors next to each other, from the lane ``first`` on."""
    if len(vectors) == 1 and tvm.DataType(str(vectors[0].ty)).lanes == count:
        return vectors[0]
    lanes = [tirx.const(first + n, "int32") for n in range(count)]
    return tirx.Shuffle(vectors, lanes)


# Of a vector of float32, and the mask of its integers.
_FLOATS, _NIBBLE = 16, 15
_FLOAT_PERMUTATION = "llvm.x86.avx512.permvar.sf.512"


@tirx.transform.prim_func_pass(opt_level=0, name="NibblesByPermutation")
class NibblesByPermutation:
    """Vectors of integers of four bits become floats by a permutation of the sixteen there are.

    Before: ``y = float32x16(word >> 8 & 15)``
    After:  ``y = permute([0, 1, ..., 15], word >> 8)``       which looks at four bits of each lane

    One instruction in place of two where weights of few bits are widened, see
    ``FuseDequantizeMatmul``.

    Leaves alone: vectors of no multiple of 16 lanes; CPUs without AVX-512.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Kernels without such integers stay as they are."""
        if not any(map(_is_of_nibbles, nodes(func.body, tirx.Cast))):
            return func
        if "avx512f" not in _features_of(func):
            return func
        return func.with_body(structural_map(func.body, (tirx.Cast, _as_floats)))


def _is_of_nibbles(cast: tirx.Cast) -> bool:
    kind = tvm.DataType(str(cast.ty))
    if kind.lanes % _FLOATS or kind != tvm.DataType(f"float32x{kind.lanes}"):
        return False
    value = cast.value
    if not isinstance(value, tirx.BitwiseAnd) or str(value.ty) != f"uint32x{kind.lanes}":
        return False
    return isinstance(value.b, tirx.Broadcast) and static_extent(value.b.value) == _NIBBLE


def _as_floats(cast: tirx.Cast) -> tvm.ir.Expr:
    if not _is_of_nibbles(cast):
        return cast
    words = cast.value.a
    lanes = tvm.DataType(str(words.ty)).lanes
    table = _lanes_of([tirx.const(float(n), "float32") for n in range(_FLOATS)], 0, _FLOATS)
    pieces = [
        tirx.call_llvm_pure_intrin(
            f"float32x{_FLOATS}",
            _FLOAT_PERMUTATION,
            table,
            tirx.reinterpret(f"int32x{_FLOATS}", _lanes_of([words], start, _FLOATS)),
        )
        for start in range(0, lanes, _FLOATS)
    ]
    return _lanes_of(pieces, 0, lanes)


# Rounding and conversion to an integer are one instruction.
#
# LLVM makes three of them: it may not join a rounding to the nearest whole number with a conversion
# that cuts off.


@tirx.transform.prim_func_pass(opt_level=0, name="RoundToIntegers")
class RoundToIntegers:
    """Rounded float32 that become int32 are converted as the processor rounds: half to even.

    Before: ``int32(nearbyint(x))``
    After:  ``lrint(x)``            what int32 does not hold becomes its lowest number in both

    Leaves alone: other types; CPUs without AVX512, for which LLVM converts each lane for itself.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Kernels that round nothing stay as they are."""
        if not any(map(_is_rounding, nodes(func.body, tirx.Cast))):
            return func
        if "avx512f" not in _features_of(func):
            return func
        return func.with_body(structural_map(func.body, (tirx.Cast, _converted)))


def _is_rounding(cast: tirx.Cast) -> bool:
    kind, rounded = tvm.DataType(str(cast.ty)), cast.value
    if not isinstance(rounded, tvm.ir.Call) or not rounded.op.same_as(_nearbyint()):
        return False
    lanes = f"x{kind.lanes}" if kind.lanes > 1 else ""
    return (str(cast.ty), str(rounded.ty)) == (f"int32{lanes}", f"float32{lanes}")


def _converted(cast: tirx.Cast) -> tvm.ir.Expr:
    if not _is_rounding(cast):
        return cast
    return tirx.call_llvm_pure_intrin(str(cast.ty), "llvm.lrint", cast.value.args[0])


@cache
def _nearbyint() -> tvm.ir.Op:
    return tvm.ir.Op.get("tirx.nearbyint")


def _features_of(func: tirx.PrimFunc) -> tuple[str, ...]:
    """Those of the CPU that a kernel is compiled for."""
    target = func.attrs["target"]
    attributes = tuple(str(feature) for feature in target.attrs.get("mattr", ()))
    names = (str(target.attrs.get(name, "")) for name in ("mtriple", "mcpu"))
    return tuple(llvm_features(*names, attributes))


# Arrays of bools that a kernel keeps hold bytes.
#
# StorageRewrite makes bytes of such an array whose accesses are vectors, and leaves the conditions
# that read it as they are: "Not" of a byte is an error in TVM.


@tirx.transform.prim_func_pass(opt_level=0, name="BoolArraysAsBytes")
class BoolArraysAsBytes:
    """Arrays of bools of a kernel's own become arrays of int8.

    Before: ``keep: bool[32]; keep[i] = x[i] > 0; y[i] = select(keep[i], x[i], z)``
    After:  ``keep: int8[32]; keep[i] = int8(x[i] > 0); y[i] = select(keep[i] != 0, x[i], z)``

    Leaves alone: parameters; arrays of which there are views, or that a call takes.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Kernels without such arrays stay as they are."""
        blocks = nodes(func.body, s_tir.SBlock)
        arrays = [a for block in blocks for a in block.alloc_buffers]
        arrays += [node.buffer for node in nodes(func.body, tirx.AllocBuffer)]
        taken = {arg for call in nodes(func.body, tvm.ir.Call) for arg in call.args}
        taken |= {match.source.source for block in blocks for match in block.match_buffers}
        bools = [a for a in arrays if str(a.dtype) == "bool" and a not in taken]
        if not bools:
            return func
        return func.with_body(_with_bytes(func.body, {array: _bytes_of(array) for array in bools}))


def _bytes_of(array: tirx.Buffer) -> tirx.Buffer:
    return tirx.decl_buffer(array.shape, "int8", array.name, scope=array.scope())


def _with_bytes(body: tirx.Stmt, bytes_of: Mapping[Any, Any]) -> tirx.Stmt:
    def load(node: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        if node.source not in bytes_of:
            return node
        return tirx.BufferLoad(bytes_of[node.source], node.indices) != tirx.const(0, "int8")

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        if node.buffer not in bytes_of:
            return node
        value = node.value.astype(str(node.value.ty).replace("bool", "int8"))
        return tirx.BufferStore(bytes_of[node.buffer], value, node.indices)

    def declaration(node: tirx.AllocBuffer) -> tirx.Stmt:
        if node.buffer not in bytes_of:
            return node
        return tirx.AllocBuffer(bytes_of[node.buffer], annotations=dict(node.annotations))

    def region(node: Any) -> Any:
        return tirx.BufferRegion(bytes_of.get(node.source, node.source), node.region)

    def block(node: s_tir.SBlock) -> s_tir.SBlock:
        return changed_block(
            node,
            reads=list(map(region, node.reads)),
            writes=list(map(region, node.writes)),
            alloc_buffers=[bytes_of.get(array, array) for array in node.alloc_buffers],
        )

    changes = [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store), (s_tir.SBlock, block)]
    return structural_map(body, [*changes, (tirx.AllocBuffer, declaration)])


# Loops that fill with one value are left to LLVM to make vectors of, where TVM cannot.
#
# TVM turns narrow floats into integers after it has made vectors, and does not look at a scalar
# that it has repeated for all lanes: no code can be generated for such a store. And of a value with
# variables of its own (``Let``) it makes the same twice, and stops as they have a value already.


@tirx.transform.prim_func_pass(opt_level=0, name="SerialFills")
class SerialFills:
    """Vectorised loops that store a narrow float or a ``Let`` which no lane changes become plain.

    Before: ``for lane in vectorized(16): y[i * 16 + lane] = x[i]``
    After:  ``for lane in range(16): y[i * 16 + lane] = x[i]``
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Kernels of other values stay as they are."""
        if not _has_such_values(func.body):
            return func
        return func.with_body(structural_map(func.body, (tirx.For, _serial)))


def _has_such_values(stmt: tirx.Stmt) -> bool:
    return bool(nodes(stmt, tirx.Let)) or any(
        _is_narrow(store.value) for store in nodes(stmt, tirx.BufferStore)
    )


def _serial(loop: tirx.For) -> tirx.For:
    if loop.kind != tirx.ForKind.VECTORIZED or not _fills(loop):
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)


def _fills(loop: tirx.For) -> bool:
    """Whether such a value is stored that is the same in all iterations."""
    if not _has_such_values(loop.body):
        return False
    changing = {loop.loop_var}
    found = False

    def visit(node: Any) -> None:
        nonlocal found
        if isinstance(node, s_tir.SBlockRealize):
            for axis, value in zip(node.block.iter_vars, node.iter_values, strict=True):
                if _reads(value, changing):
                    changing.add(axis.var)
        elif isinstance(node, tirx.Bind) and _reads(node.value, changing):
            changing.add(node.var)
        elif isinstance(node, tirx.BufferStore):
            found = found or (_is_hard_to_repeat(node) and not _reads(node.value, changing))

    walk(loop.body, (s_tir.SBlockRealize, tirx.Bind, tirx.BufferStore), visit)
    return found


def _reads(expr: tvm.ir.Expr, variables: set[tirx.Var]) -> bool:
    return any(var in variables for var in tirx.analysis.undefined_vars(expr))


def _is_hard_to_repeat(store: tirx.BufferStore) -> bool:
    return _is_narrow(store.value) or bool(nodes(store.value, tirx.Let))


def _is_narrow(value: tvm.ir.Expr) -> bool:
    return str(value.ty).removeprefix("T.").startswith(("bfloat16", "float8"))
