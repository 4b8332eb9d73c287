"""AttentionFusion: scores, softmax and the product with the values as one kernel."""

from collections.abc import Sequence
from dataclasses import replace

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription, current_cpu
from tvm_ext.hardware.cuda.description import CudaDescription, current_gpu
from tvm_ext.passes.attention_operands import NARROW
from tvm_ext.passes.attention_pattern import AttentionMatch, find_attention
from tvm_ext.passes.heads_of_scores import HeadsOfScores
from tvm_ext.passes.sizes_of_scores import SizesOfScores
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.tir_schedules.cpu.attention import attention as cpu_attention
from tvm_ext.tir_schedules.cuda.attention import attention as cuda_attention
from tvm_ext.tir_schedules.operators.attention import AttentionCompute

_FOLLOWERS = ("relax.permute_dims", "relax.astype")


@graph_pass
class AttentionFusion:
    """Makes ``softmax(mask(scale * Q K^T)) V`` one function, for which a machine has a kernel.

    Before::  k = permute_dims(x, [0, 2, 3, 1]); s = matmul(q, k); t = divide(s, 8.0)
              p = softmax(add(t, mask)); y = permute_dims(matmul(p, v), [0, 2, 1, 3])
    After::   y = call_tir(attention, (q, x, v, mask))

    The function has the attribute of ``AttentionCompute``, and is right under any schedule. Scales
    may stand before or after, as factor or divisor, on either operand; masks are added or choose a
    number, and are read where they are; a constant one that hides what is ahead becomes a rule;
    scores may be capped by a tanh ahead of them, and may have one axis for batch and heads; a sink
    may be concatenated with them for the softmax and dropped from the weights;
    transposes and repeated heads are read through; sums are in float32, with casts or without.

    Leaves alone: other targets than CPUs and GPUs; scores or weights with another user; scales that
    are not one number above zero, or follow an added mask; symbolic shapes; sizes and types for
    which there is no kernel.

    Run after: FoldConstantCalls, DecomposeOpsForInference. Run before: GemmFusion.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        machine = current_gpu() or current_cpu()
        if machine is None:
            return mod
        return _Fuser(machine).run(HeadsOfScores().run(SizesOfScores().run(mod)))


class _Fuser(BindingRewriter):
    pass_name = "AttentionFusion"

    def __init__(self, machine: CpuDescription | CudaDescription) -> None:
        self.machine = machine

    def start_function(self, func: relax.Function) -> None:
        super().start_function(func)
        self._users: dict[relax.Var, list[relax.Var]] = {}
        for var, value in self.view.bindings().items():
            for argument in value.args if isinstance(value, relax.Call) else ():
                if isinstance(argument, relax.Var):
                    self._users.setdefault(argument, []).append(var)

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        if self._is_taken_in(var):
            return None
        result = var
        followers: list[relax.Call] = []
        while self.view.call(result, "relax.matmul") is None:
            call = self.view.call(result, *_FOLLOWERS)
            if call is None or not self._is_taken_in(call.args[0]):
                return None
            followers.insert(0, call)
            result = call.args[0]
        match = self._match(var, result)
        if match is None:
            return None
        if match.empty_rows is not None:
            return self._with_empty_rows(var, match, followers)
        for follower in followers:
            match = _followed(match, follower)
        return self._replacement(var, match)

    def _is_taken_in(self, expr: relax.Expr) -> bool:
        """Whether the only user is a cast, or a transpose that keeps a head's elements together."""
        users = self._users.get(expr, [])
        if len(users) != 1 or self.view.uses(expr) != 1:
            return False
        call = self.view.call(users[0], *_FOLLOWERS)
        if call is None:
            return False
        if call.op.name == "relax.astype":
            return {str(call.ty.dtype), str(expr.ty.dtype)} <= {"float32", *NARROW}
        rank = expr.ty.ndim
        return call.attrs.axes is not None and int(call.attrs.axes[-1]) % rank == rank - 1

    def _match(self, var: relax.Var, result: relax.Var) -> AttentionMatch | None:
        product = self.view.call(result, "relax.matmul")
        try:
            return None if product is None else find_attention(self.view, product)
        except NotApplicable as reason:
            self.refuse(str(reason), var)
            return None

    def _with_empty_rows(
        self, var: relax.Var, match: AttentionMatch, followers: Sequence[relax.Call]
    ) -> Replacement | None:
        """Weights of some rows are zeros: so are their results."""
        made = self._replacement(var, match)
        if made is None:
            return None
        zero = relax.const(0, match.compute.dtype)
        result = relax.op.where(match.empty_rows, zero, self.bind(made.value, var))
        for follower in followers:
            arguments = [self.bind(result, var)]
            result = relax.Call(follower.op, arguments, follower.attrs, follower.ty_args)
        return Replacement(result, made.absorbed, made.what)

    def _replacement(self, var: relax.Var, match: AttentionMatch) -> Replacement | None:
        shapes = [list(tensor.ty.shape.values) for tensor in match.arguments]
        dtypes = [str(tensor.ty.dtype) for tensor in match.arguments]
        func = attention_function(match.compute, shapes, dtypes)
        reason = _refusal(func, self.machine)
        if reason:
            self.refuse(reason, var)
            return None
        shape = match.compute.output_shape(shapes[0], shapes[2])
        called = self.builder.add_func(func, "attention")
        result = relax.TensorType(shape, match.compute.dtype)
        call = relax.call_tir(called, relax.Tuple(match.arguments), result)
        return Replacement(call, tuple(match.passed), _words(match))


def _followed(match: AttentionMatch, follower: relax.Call) -> AttentionMatch:
    """The same with the cast or the transpose that follows it taken in."""
    compute = replace(match.compute, dtype=str(follower.ty.dtype))
    if follower.op.name == "relax.permute_dims":
        axes = compute.output
        order = "".join(axes[int(axis) % len(axes)] for axis in follower.attrs.axes)
        compute = replace(compute, output=order)
    return AttentionMatch(compute, match.arguments, [*match.passed, follower.args[0]])


def attention_function(
    compute: AttentionCompute, shapes: Sequence[Sequence[tvm.ir.Expr]], dtypes: Sequence[str]
) -> tirx.PrimFunc:
    """The function, with a size of its own for each symbolic extent of its tensors' shapes."""
    sizes: dict[tvm_ffi.StructuralKey, tirx.Var] = {}

    def own(extent: tvm.ir.Expr) -> int | tirx.Var:
        if isinstance(extent, tirx.IntImm):
            return int(extent)
        fresh = tirx.Var(f"n{len(sizes)}", str(extent.ty))
        return sizes.setdefault(tvm_ffi.StructuralKey(extent), fresh)

    return compute.function([[own(extent) for extent in shape] for shape in shapes], dtypes)


def _refusal(func: tirx.PrimFunc, machine: CpuDescription | CudaDescription) -> str:
    if isinstance(machine, CpuDescription):
        return cpu_attention.refusal(func, machine)
    return cuda_attention.refusal(func, machine)


def _words(match: AttentionMatch) -> str:
    compute = match.compute
    words = [f"scale {compute.scale:.4g}"]
    words += [f"{len(compute.masks)} mask" + "s" * (len(compute.masks) > 1)] * bool(compute.masks)
    words += [f"capped at {compute.cap:.4g}"] if compute.cap is not None else []
    words += ["a sink"] if compute.sink is not None else []
    words += ["causal"] if compute.causal is not None else []
    words += [f"{compute.group} heads share keys"] if compute.group > 1 else []
    return ", ".join(words)
