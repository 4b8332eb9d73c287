"""The way of a module through MLIR's own passes, in stages: linalg, bufferized, llvm."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from torch_mlir import ir, rewrite
from torch_mlir.dialects import linalg
from torch_mlir.dialects.transform import interpreter
from torch_mlir.passmanager import PassManager

from tvm_ext.configs.errors import last_line
from tvm_ext.mlir import MlirError

# Named operations where a generic one is a matmul, a fill, a transpose.
_NAMES = "linalg-specialize-generic-ops"
_NO_NAMES = "linalg-generalize-named-ops"
_LINALG = (_NAMES, "canonicalize", "cse")

_FREES = "buffer-deallocation-pipeline"

_FUSES = "linalg-fuse-elementwise-ops"

_BUFFERIZED = (
    # Of two elementwise operations, one after the other, one; the tensor between them goes. Only
    # operations without names are fused.
    _NO_NAMES,
    _FUSES,
    "canonicalize",
    "cse",
    # What is put into a buffer in the end is computed there.
    "eliminate-empty-tensors",
    "one-shot-bufferize",
    # Code is for one thread. Arrays of a loop's own are allocated once, small ones on the stack.
    "func.func(scf-parallel-for-to-nested-fors)",
    "func.func(buffer-loop-hoisting)",
    "func.func(promote-buffers-to-stack{max-alloc-size-in-bytes=65536})",
    _FREES,
    *_LINALG,
)

# What are no passes of MLIR: see ``_order_loops`` and ``_copies_to_loops``.
_ORDER_LOOPS = "order-loops"
_COPIES = "copies-to-loops"

_LLVM = (
    _COPIES,
    _NO_NAMES,
    _ORDER_LOOPS,
    "convert-linalg-to-loops",
    "canonicalize",
    # LLVM has no such arithmetic for some types, and the C library no functions of them.
    "func.func(math-extend-to-supported-types)",
    "func.func(arith-emulate-unsupported-floats{source-types=bf16 target-type=f32})",
    "func.func(arith-expand{include-bf16=true})",
    "convert-vector-to-scf",
    "expand-strided-metadata",
    "lower-affine",
    "canonicalize",
    "cse",
    "convert-scf-to-cf",
    "convert-vector-to-llvm",
    "convert-math-to-llvm{approximate-log1p=false}",
    "convert-math-to-libm",
    "convert-arith-to-llvm",
    "convert-index-to-llvm",
    "finalize-memref-to-llvm",
    "convert-func-to-llvm",
    "convert-cf-to-llvm",
    "reconcile-unrealized-casts",
    "canonicalize",
    "cse",
)

# What is no pass of MLIR: see ``_results_to_parameters``.
_RESULTS = "results-to-parameters"

_WITH_BOUNDARIES = (
    "one-shot-bufferize{bufferize-function-boundaries=true "
    "function-boundary-type-conversion=identity-layout-map}",
    _RESULTS,
)
_GRAPH_BUFFERIZED = tuple(
    step
    for one in _BUFFERIZED
    for step in (_WITH_BOUNDARIES if one == "one-shot-bufferize" else (one,))
)

STAGES: dict[str, Sequence[str]] = {
    "linalg": _LINALG,
    "bufferized": _BUFFERIZED,
    "llvm": _LLVM,
}


# The same for the graph of a model. Its operations got their names kernel by kernel.
GRAPH_STAGES: dict[str, Sequence[str]] = {
    "linalg": ("canonicalize", "cse"),
    "bufferized": _GRAPH_BUFFERIZED,
    "llvm": _LLVM,
}


# What a graph goes through without fusion, and with a copy ahead of each write: for comparison.
UNOPTIMIZED_STAGES: dict[str, Sequence[str]] = {
    "linalg": ("canonicalize", "cse"),
    "bufferized": (
        "one-shot-bufferize{copy-before-write=true bufferize-function-boundaries=true "
        "function-boundary-type-conversion=identity-layout-map}",
        _RESULTS,
        "func.func(scf-parallel-for-to-nested-fors)",
        _FREES,
    ),
    "llvm": _LLVM,
}

# The same as for any graph, but each operation stays one.
UNFUSED_STAGES: dict[str, Sequence[str]] = {
    **GRAPH_STAGES,
    "bufferized": tuple(one for one in _GRAPH_BUFFERIZED if one != _FUSES),
}


def lower_to(
    module: ir.Module,
    stage: str,
    stages: Mapping[str, Sequence[str]] = STAGES,
    done: str = "",
) -> None:
    """Brings a module to a stage; each pass ends in MLIR's verifier.

    Parameters
    ----------
    module : ir.Module
        The module, which is changed.
    stage : str
        Where it is to be.
    stages : mapping, optional
        Those of a kernel, or ``GRAPH_STAGES``.
    done : str
        The stage that it is at; empty for a module as it was converted.

    Raises
    ------
    MlirError
        A pass of MLIR fails.
    """
    names = list(stages)
    first = names.index(done) + 1 if done else 0
    for name in names[first : names.index(stage) + 1]:
        run_passes(module, stages[name])


def run_passes(module: ir.Module, passes: Sequence[str]) -> None:
    """Runs passes of MLIR, by their names in its pipelines. Raises MlirError where one fails."""
    with module.context:
        for one in passes:
            if one == _ORDER_LOOPS:
                _order_loops(module)
            elif one == _COPIES:
                _copies_to_loops(module)
            elif one == _RESULTS:
                _results_to_parameters(module)
            elif _is_needed(one, module):
                _run_pass(one, module.operation)


def _is_needed(name: str, module: ir.Module) -> bool:
    if name == _FREES:
        # The pass refuses calls of LLVM's own functions, whether anything is to be freed or not.
        return any(op.name == "memref.alloc" for op in operations_below(module.operation))
    return name != _NAMES or _takes_names(module)


def _run_pass(name: str, op: ir.Operation) -> None:
    try:
        PassManager.parse(f"builtin.module({name})").run(op)
    except (ir.MLIRError, ValueError, RuntimeError) as error:
        raise MlirError(
            f"MLIR's pass {name} fails: {cause(error)}; expected a module that it takes: leave "
            "the kernel to TVM's code generation"
        ) from error


def cause(error: Exception) -> str:
    """What MLIR says is wrong, without the operations that it shows with it."""
    diagnostics = getattr(error, "error_diagnostics", None)
    if diagnostics:
        return str(diagnostics[0].message)
    said = [line.partition("error: ")[2] for line in str(error).splitlines() if "error: " in line]
    return said[0] if said else last_line(error)


def _takes_names(module: ir.Module) -> bool:
    """Whether operations may get names: with them they have to compute what they did.

    MLIR makes invalid ones of matmuls with two batch axes. Of what computes something with a factor
    of a product it makes a plain product, and it takes a convolution of unsigned numbers for one of
    signed numbers, and nobody says so.
    """
    named, plain = module.operation.clone(), module.operation.clone()
    try:
        _run_pass(_NAMES, named)
    except MlirError:
        return False
    for one in (named, plain):
        _run_pass(_NO_NAMES, one)
    return _computed(named) == _computed(plain)


def _computed(op: ir.Operation) -> Counter[str]:
    """How often each operation is in the bodies of those of linalg.

    Those that only move values have none: an operand that is spread along an axis gets one more.
    """
    bodies = (each for one in _generics(op) for each in operations_below(one))
    return Counter(each.name for each in bodies if each.name not in _COMPUTE_NOTHING)


_COMPUTE_NOTHING = ("arith.constant", "linalg.yield")


def _copies_to_loops(module: ir.Module) -> None:
    """Writes copies of memory as operations of linalg: MLIR itself calls a library for them."""
    copies = [op for op in operations_below(module.operation) if op.name == "memref.copy"]
    for copy in copies:
        source, target = copy.operands
        with ir.InsertionPoint(copy), copy.location:
            linalg.copy(source, outs=[target])
        copy.erase()


def _results_to_parameters(module: ir.Module) -> None:
    """Gives a graph's function memory for its results as further parameters, as a kernel has.

    A result whose sizes a run decides is returned: nobody knows the memory before.
    """
    types = [one for one in _result_types(module) if isinstance(one, ir.MemRefType)]
    if types and all(one.has_static_shape for one in types):
        _run_pass(
            "buffer-results-to-out-params{modify-public-functions=true hoist-static-allocs=true}",
            module.operation,
        )


def _result_types(module: ir.Module) -> list[ir.Type]:
    functions = [op for op in module.body.operations if op.operation.name == "func.func"]
    return [one for op in functions for one in op.type.results]


# The order of loops.


def _order_loops(module: ir.Module) -> None:
    """Puts the last parallel loop of each operation that reduces inside of its reductions.

    There the elements of a row of the result follow each other, which LLVM makes vectors of; within
    the reduction, as operations are written, it would have to change the order of a sum.
    """
    patterns = {str(op.attributes["iterator_types"]) for op in _generics(module.operation)}
    orders = {pattern: order for pattern in sorted(patterns) if (order := _order(pattern))}
    if not orders:
        return
    steps = [
        f"""
        %m{n} = transform.structured.match ops{{["linalg.generic"]}}
            attributes {{iterator_types = {pattern}}} in %root
            : (!transform.any_op) -> !transform.any_op
        %i{n} = transform.structured.interchange %m{n} iterator_interchange = {order}
            : (!transform.any_op) -> !transform.any_op"""
        for n, (pattern, order) in enumerate(orders.items())
    ]
    apply_transform("".join(steps), module)


def _order(pattern: str) -> list[int]:
    """The new order of loops of these kinds; empty where they stay as they are."""
    kinds = [part.partition("<")[2].rstrip(">]") for part in pattern.split(",")]
    parallel, reduces = kinds.count("parallel"), kinds.count("reduction")
    if parallel < 2 or not reduces or kinds != ["parallel"] * parallel + ["reduction"] * reduces:
        return []
    return [*range(parallel - 1), *range(parallel, parallel + reduces), parallel - 1]


def operations_below(op: ir.Operation) -> Iterator[ir.Operation]:
    """All operations below one."""
    for region in op.regions:
        for block in region:
            for each in block:
                yield each.operation
                yield from operations_below(each.operation)


def _generics(op: ir.Operation) -> list[ir.Operation]:
    return [each for each in operations_below(op) if each.name == "linalg.generic"]


def apply_transform(steps: str, module: ir.Module) -> None:
    """Applies steps of the transform dialect to a module, which they know as ``%root``.

    Text with a named sequence ``__transform_main`` is taken as it is. Raises MlirError where the
    steps cannot be read or do not apply.
    """
    with module.context:
        try:
            parsed = ir.Module.parse(_sequence_of(steps))
            sequence = parsed.body.operations[0]
            interpreter.apply_named_sequence(module.operation, sequence, parsed)
        except (ir.MLIRError, ValueError, RuntimeError) as error:
            raise MlirError(
                f"the script of the transform dialect fails: {cause(error)}; expected steps "
                "that apply to the module: correct the script"
            ) from error


def _sequence_of(steps: str) -> str:
    if "transform.named_sequence" in steps:
        return steps
    return f"""
    module attributes {{transform.with_named_sequence}} {{
      transform.named_sequence @__transform_main(%root: !transform.any_op) {{
        {steps}
        transform.yield
      }}
    }}"""


def apply_patterns(text: str, module: ir.Module) -> None:
    """Applies patterns of the PDL dialect to a module until none fits.

    Raises MlirError where they cannot be read, or never come to an end.
    """
    with module.context:
        try:
            # What was read is named, as MLIR looks into it later and does not keep it.
            read = ir.Module.parse(text)
            patterns = rewrite.PDLModule(read)
            rewrite.apply_patterns_and_fold_greedily(module, patterns.freeze())
        except (ir.MLIRError, ValueError, RuntimeError) as error:
            raise MlirError(
                f"the patterns of PDL fail: {cause(error)}; expected ones that apply to the "
                "module and come to an end: correct them"
            ) from error


def read_text(text: str) -> None:
    """Raises an error of MLIR for text that is no pipeline, script or patterns."""
    if "pdl.pattern" in text:
        ir.Module.parse(text)
    elif "transform." in text:
        ir.Module.parse(_sequence_of(text))
    else:
        PassManager.parse(f"builtin.module({text})")
