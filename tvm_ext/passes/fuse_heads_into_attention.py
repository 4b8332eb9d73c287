"""FuseHeadsIntoAttention: attention reads its heads from the columns of the product with them."""

import json
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_ext.hardware.cpu.description import CpuDescription, current_cpu
from tvm_ext.passes.attention_fusion import attention_function
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.combine_parallel_matmul import HEADS_ATTRIBUTE
from tvm_ext.relay_passes.expressions import same_extents
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.tir_schedules.cpu.attention.attention import refusal
from tvm_ext.tir_schedules.operators.attention import ATTRIBUTE, AttentionCompute

_OPERANDS = ("query", "key", "value")


@graph_pass
class FuseHeadsIntoAttention:
    """Lets attention on a CPU read query, key and value where one product has written them.

    Before: ``q = heads(qkv)``, ``k = heads(qkv)``, ``v = heads(qkv)``, ``y = attention(q, k, v)``;
            or fields of a ``split`` of a transpose of ``reshape(qkv, (b, s, 3, h, d))``
    After:  ``x = reshape(qkv, (b, s, 3 h, d))``, ``y = attention(x, x, x)``, which begins with
            another head of each

    Attention copies keys and values next to each other in any case, so that the kernels that copy
    heads are saved.

    Leaves alone: other targets than CPUs; heads that begin within a head of another size.

    Run after: AttentionFusion, CombineParallelMatmul. Run before: SplitToSlices, LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        machine = current_cpu()
        return mod if machine is None else _Fuser(machine).run(mod)


@dataclass(frozen=True)
class _Heads:
    """Heads that one product gives together with others.

    Attributes
    ----------
    source : relax.Var
        The product.
    shape : list
        Its shape with all heads as the last axis but one, and their elements as the last.
    axes : list[int]
        Which axis of that each axis of the operand is.
    first : int
        The number of the first of the heads.
    """

    source: relax.Var
    shape: list[Any]
    axes: list[int]
    first: int

    def letters(self, operand: str) -> str:
        """The letters of the axes of ``shape``, for those of the operand's."""
        return "".join(operand[self.axes.index(axis)] for axis in range(len(self.axes)))


class _Fuser(BindingRewriter):
    pass_name = "FuseHeadsIntoAttention"
    roots = frozenset({"relax.call_tir"})

    def __init__(self, machine: CpuDescription) -> None:
        self.machine = machine

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(var, "relax.call_tir")
        attributes = {} if call is None else self.mod[call.args[0]].attrs or {}
        if call is None or ATTRIBUTE not in attributes:
            return None
        compute = AttentionCompute.from_attribute(str(attributes[ATTRIBUTE]))
        arguments = list(call.args[1].fields)
        found = [self._operand(arguments[i], getattr(compute, n)) for i, n in enumerate(_OPERANDS)]
        if not any(found):
            return None
        result = call.ty_args[0]
        first_query, first_key, first_value = (0 if one is None else one.first for one in found)
        count = int(result.shape[compute.output.index("h")])
        compute = replace(compute, heads=count, first_heads=(first_query, first_key, first_value))
        for name, heads in zip(_OPERANDS, found, strict=True):
            if heads is not None:
                letters: Any = {name: heads.letters(getattr(compute, name))}
                compute = replace(compute, **letters)
        shapes = [list(argument.ty.shape.values) for argument in arguments]
        shapes[:3] = [s if h is None else h.shape for h, s in zip(found, shapes, strict=False)]
        dtypes = [str(argument.ty.dtype) for argument in arguments]
        func = attention_function(compute, shapes, dtypes)
        if reason := refusal(func, self.machine):
            self.refuse(reason, var)
            return None
        passed = [arguments[i] for i, heads in enumerate(found) if heads is not None]
        views: dict[tuple[int, int], relax.Var] = {}
        for place, heads in enumerate(found):
            if heads is not None:
                key = hash(heads.source), int(heads.shape[-1])
                if key not in views:
                    views[key] = self.bind(relax.op.reshape(heads.source, heads.shape), var)
                arguments[place] = views[key]
        called = self.builder.add_func(func, "attention")
        made = relax.call_tir(called, relax.Tuple(arguments), result)
        return Replacement(made, tuple(passed), f"{len(passed)} copies of heads")

    def _operand(self, operand: relax.Expr, letters: str) -> _Heads | None:
        """The heads that an operand is a copy of; None where it has to stay."""
        heads = self._copied(operand) or self._field(operand)
        if heads is None or "h" not in letters or not self.reaches(heads.source):
            return None
        return heads if heads.letters(letters).endswith("hd") else None

    def _copied(self, operand: relax.Expr) -> _Heads | None:
        """Those that CombineParallelMatmul copies."""
        call = self.view.call(operand, "relax.call_tir")
        attributes = {} if call is None else self.mod[call.args[0]].attrs or {}
        if call is None or HEADS_ATTRIBUTE not in attributes:
            return None
        given = json.loads(str(attributes[HEADS_ATTRIBUTE]))
        # Behind the tensor may be sizes.
        source = call.args[1].fields[0]
        size, first = given["size"], given["first"]
        *lead, columns = source.ty.shape.values
        if not isinstance(source, relax.Var) or int(columns) % size or first % size:
            return None
        shape = [*lead, tirx.const(int(columns) // size, "int64"), tirx.const(size, "int64")]
        return _Heads(source, shape, given["axes"], first // size)

    def _field(self, operand: relax.Expr) -> _Heads | None:
        """Those of a field of a split of ``permute_dims(x, ...)``, x having an axis of fields ahead
        of the heads, as image models write it.
        """
        squeezed = self.view.call(operand, "relax.squeeze", "relax.reshape")
        field = None if squeezed is None else self.view.bindings().get(squeezed.args[0])
        if squeezed is None or not isinstance(field, relax.TupleGetItem):
            return None
        split = self.view.call(field.tuple_value, "relax.split")
        moved = None if split is None else self.view.call(split.args[0], "relax.permute_dims")
        if split is None or moved is None or moved.attrs.axes is None:
            return None
        if not isinstance(moved.args[0], relax.Var):
            return None
        source, order = moved.args[0], [int(axis) for axis in moved.attrs.axes]
        rank, axis = len(order), int(split.attrs.axis)
        inner, place = squeezed.args[0].ty.shape.values, axis % rank
        kept = [extent for i, extent in enumerate(inner) if i != place]
        one = isinstance(inner[place], tirx.IntImm) and int(inner[place]) == 1
        if not one or not same_extents(operand.ty.shape.values, kept) or order[place] != rank - 3:
            return None
        *lead, fields, number, size = source.ty.shape.values
        if not all(isinstance(extent, tirx.IntImm) for extent in (fields, number, size)):
            return None
        # The axis of fields and that of the heads become one.
        axes = [one if one < rank - 3 else one - 1 for i, one in enumerate(order) if i != place]
        shape = [*lead, fields * number, size]
        return _Heads(source, shape, axes, int(field.index) * int(number))
