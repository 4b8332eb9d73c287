"""The pass that lets a run launch many kernels of a GPU at once."""

import tvm
from tvm import relax, s_tir, tirx
from tvm_ffi import structural_map, structural_walk

from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.graph_pass import graph_pass, record_applied, record_refusal
from tvm_ext.relay_passes.spans import bindings_of, relax_bindings, relax_functions, with_functions

# What TVM's rewriting names the functions whose kernels it captures.
_CAPTURED = "_cuda_graph_capture"
# The virtual machine's function that launches a graph, and ours that runs what is in it instead.
RUN_OR_CAPTURE = "vm.builtin.cuda_graph.run_or_capture"
PLAIN_RUN = "tvm_ext.run_without_graph"


@graph_pass
class CudaGraphs:
    """Puts kernels whose buffers keep their place into CUDA graphs, launched with one call each.

    Before: ``storage = alloc_storage(...)``, then ``k1(x, a)``, ``k2(a, b)``, ``k3(b, y)``
    After:  storage that is allocated once; ``k1(x, a)``, a graph with ``k2``, ``k3(b, y)``

    Kernels that read an input or write an output stay outside: those arrays are others at each run.
    It is TVM's ``RewriteCUDAGraph`` behind checks of what that takes for granted.

    Leaves alone: programs for CPUs; sizes that a run decides; branches and loops, whose functions
    would share one storage; kernels that allocate memory or call the host while they run.

    Run after: the planning of storage.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when there is nothing to capture."""
        target = tvm.target.Target.current(allow_none=True)
        if target is None or target.kind.name != "cuda":
            return mod
        reason = _why_not(mod)
        if reason:
            record_refusal("CudaGraphs", "main", reason)
            return mod
        with tvm.transform.PassContext(opt_level=3, config={"relax.backend.use_cuda_graph": True}):
            captured = relax.transform.RewriteCUDAGraph()(mod)
        graphs, kernels = captured_kernels(captured)
        if not graphs:
            record_refusal("CudaGraphs", "main", "every kernel reads an input or writes an output")
            return mod
        record_applied("CudaGraphs", "main", f"{kernels} kernel call(s) in {graphs} graph(s)")
        return captured


def captured_kernels(mod: tvm.IRModule) -> tuple[int, int]:
    """Number of graphs in a module, and of the kernel calls in them."""
    functions = relax_functions(mod).items()
    graphs = [func for var, func in functions if _CAPTURED in str(var.name_hint)]
    kernels = sum(
        isinstance(binding.value, relax.Call) and isinstance(binding.value.op, tvm.ir.GlobalVar)
        for func in graphs
        for binding in bindings_of(func)
    )
    return len(graphs), kernels


def launches_only(mod: tvm.IRModule) -> bool:
    """Whether no kernel of a module allocates memory or calls the host while it runs."""
    return all(
        _only_launches(func) for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)
    )


def without_capture(mod: tvm.IRModule) -> tvm.IRModule:
    """A planned module whose captured kernels are launched one by one after all."""

    def plain(callee: relax.ExternFunc) -> relax.ExternFunc:
        same = str(callee.global_symbol) != RUN_OR_CAPTURE
        return callee if same else relax.ExternFunc(PLAIN_RUN)

    changed = {
        var: structural_map(func, (relax.ExternFunc, plain))
        for var, func in relax_functions(mod).items()
    }
    return with_functions(mod, changed)


def _why_not(mod: tvm.IRModule) -> str:
    if len(relax_functions(mod)) > 1:
        return "the program has loops or functions, which would share one storage"
    if any(isinstance(binding.value, relax.If) for binding in relax_bindings(mod)):
        return "the program has branches"
    if _sizes_symbolic(mod["main"]):
        return "sizes are known only at run time"
    for binding in relax_bindings(mod):
        call = binding.value
        if isinstance(call, relax.Call) and isinstance(call.op, relax.ExternFunc):
            return f"the program calls {call.op.global_symbol} on the host"
        if operator_name(call) == "relax.call_builtin_with_ctx":
            return "the program calls the virtual machine"
    for var, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc) and not _only_launches(func):
            return f"kernel {var.name_hint} allocates memory or calls the host while it runs"
    return ""


def _sizes_symbolic(main: relax.Function) -> bool:
    types = [main.ret_ty, *(param.ty for param in main.params)]
    return any(len(relax.analysis.tir_vars_in_type(ty)) > 0 for ty in types)


def _only_launches(func: tirx.PrimFunc) -> bool:
    """Whether a kernel's host code does nothing but launch: what a capture records is then all."""
    found: list[bool] = []

    def allocates(block: s_tir.SBlock) -> None:
        found.extend(buffer.scope() == "global" for buffer in block.alloc_buffers)

    def calls(call: relax.Call) -> None:
        found.append(call.op.same_as(_CALL_PACKED) or call.op.same_as(_CALL_CPACKED))

    structural_walk(func.body, [(s_tir.SBlock, allocates), (relax.Call, calls)], order="pre")
    return not any(found)


_CALL_PACKED = tvm.ir.Op.get("tirx.tvm_call_packed")
_CALL_CPACKED = tvm.ir.Op.get("tirx.tvm_call_cpacked")
