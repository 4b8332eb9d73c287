"""What the report says of each kernel: work, modelled time, schedule and origin."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm.s_tir.analysis import estimate_tir_flops
from tvm.sym import Analyzer

from tvm_ext.hardware.cost_model import CostModel, Work
from tvm_ext.relay_passes.expressions import operator_name, value_for
from tvm_ext.relay_passes.spans import bindings_of
from tvm_ext.report.records import KernelCall, KernelRecord, MicroBatchRecord, SizesRecord
from tvm_ext.tir_schedules.analysis.buffer_access import nodes, static_extent
from tvm_ext.tir_schedules.schedule_kernels import ScheduleChoice
from tvm_ext.tir_schedules.statements import sizes_at, with_sizes

_UNSCHEDULED = ScheduleChoice("as written", "as written", "ScheduleKernels did not run")


def kernel_records(
    unscheduled: tvm.IRModule,
    calls: Sequence[KernelCall],
    choices: dict[str, ScheduleChoice],
    cost_model: CostModel,
    asked_records: bool = False,
) -> list[KernelRecord]:
    """One record a kernel, in the order of first calls.

    ``asked_records``: whether the user gave tuned records, so that a miss is worth a word.
    """
    origins: dict[str, list[str]] = {}
    for call in calls:
        origins.setdefault(call.kernel, []).append(call.where)
    records = []
    for name, places in origins.items():
        func = unscheduled[name]
        choice = choices.get(name, _UNSCHEDULED)
        known = has_known_sizes(func)
        hit = choice.source == "record"
        records.append(
            KernelRecord(
                name=name,
                calls=len(places),
                origins=places,
                schedule=choice.schedule,
                source=choice.source,
                reason=choice.reason,
                refusals=list(choice.refusals),
                flops=kernel_flops(func) if known else None,
                bytes=kernel_bytes(func) if known else None,
                estimated_seconds=kernel_seconds(func, cost_model) if known else None,
                tuned="hit" if hit else "miss" if asked_records else "",
                miss=choice.miss if asked_records else "",
                dtype=kernel_dtype(func),
            )
        )
    return records


def largest_result(unscheduled: tvm.IRModule, calls: Sequence[KernelCall]) -> str:
    """The nodes whose kernel gives the largest tensor, and its shape; empty for no kernels."""
    found = {call.kernel: call.where for call in reversed(calls)}
    sized = [
        (math.prod(static_extent(size) or 1 for size in param.shape), name, list(param.shape))
        for name in found
        for param in unscheduled[name].params[-1:]
        if hasattr(param, "shape")
    ]
    if not sized:
        return ""
    _, name, shape = max(sized, key=lambda item: item[0])
    sizes = [str(static_extent(size) or "?") for size in shape]
    return f"'{found[name]}', of shape [{', '.join(sizes)}]"


def has_known_sizes(func: tirx.PrimFunc) -> bool:
    """Whether all tensors that a kernel takes have sizes that no run decides."""
    shapes = [param.shape for param in func.params if hasattr(param, "shape")]
    return all(_extent(size) is not None for shape in shapes for size in shape)


def _extent(size: tirx.Expr | int) -> int | None:
    """As ``static_extent``, of numbers that are still to be added or multiplied, too."""
    return static_extent(size if isinstance(size, int) else Analyzer().simplify(size))


def work_of_call(
    kernels: Mapping[str, tirx.PrimFunc], name: str, shapes: Sequence[tuple[int, ...] | int | None]
) -> Work | None:
    """Operations and bytes of one call at its sizes; None where its arguments do not tell them.

    ``shapes`` are those of the arguments, or values of numbers; None for what is not known.
    """
    func = kernels[name]
    known = with_sizes(func, sizes_at(func, shapes))
    return kernel_work(known) if has_known_sizes(known) else None


# Formulas longer than this are for no reader.
_LONGEST_FORMULA = 60
# As TVM prints it.
_INTEGER = re.compile(r"T\.int64\((-?\d+)\)")


def nominal_figures(
    kernels: tvm.IRModule,
    records: Sequence[KernelRecord],
    sizes: Mapping[str, int],
    storage_bytes: tvm.ir.Expr | None,
    cost_model: CostModel,
) -> SizesRecord:
    """Figures of a run at ``sizes``, by name of the inputs' dimensions.

    ``kernels`` are the lowered functions, ``main`` among them, which calls them; ``records`` say
    what is known for any sizes.
    """
    work = _work_of_run(kernels, records, sizes)
    nbytes = None if storage_bytes is None else value_for(storage_bytes, sizes)
    formula = _INTEGER.sub(lambda found: f"{int(found[1]):,}", str(storage_bytes))
    is_short = len(formula) <= _LONGEST_FORMULA and "T." not in formula
    return SizesRecord(
        sizes=dict(sizes),
        memory_bytes=nbytes if nbytes is not None and nbytes >= 0 else None,
        memory_formula=formula if storage_bytes is not None and is_short else "",
        flops=None if work is None else sum(one.flops for one in work),
        estimated_seconds=None if work is None else sum(map(cost_model.seconds, work)),
    )


def _work_of_run(
    kernels: tvm.IRModule, records: Sequence[KernelRecord], sizes: Mapping[str, int]
) -> list[Work] | None:
    """The work of each call of a run; None where branches, loops or data decide some of it."""
    known = {
        record.name: Work(record.flops, record.bytes, record.dtype)
        for record in records
        if record.flops is not None and record.bytes is not None
    }
    bound = [binding.value for binding in bindings_of(kernels["main"])]
    if any(isinstance(v, relax.If) or _is_call_of_function(v) for v in bound):
        return None
    found = []
    for name, arguments in calls_at(kernels, sizes):
        if arguments is None:
            return None
        work = known.get(name) or work_of_call({name: kernels[name]}, name, arguments)
        if work is None:
            return None
        found.append(work)
    return found


# A micro-batch reads and writes arrays of its own this many times as much as weights, and takes
# this long: what is faster has several items go through each kernel together.
_OWN_TO_WEIGHTS = 4.0
_LEAST_SECONDS = 500e-6


def micro_batch(
    kernels: tvm.IRModule,
    dimension: str,
    sizes: Mapping[str, int],
    item_elements: int,
    item_seconds: float,
) -> MicroBatchRecord | None:
    """How a batch whose items are independent is cut into micro-batches; None if not at all.

    ``sizes`` are nominal ones, with ``item_elements`` elements of the inputs of one item, which is
    modelled to take ``item_seconds``.
    """
    one, two = (_bytes_of_run(kernels, {**sizes, dimension: items}) for items in (1, 2))
    if one is None or two is None or two <= one or item_seconds <= 0:
        return None
    own = two - one
    items = max(_OWN_TO_WEIGHTS * max(one - own, 0.0) / own, _LEAST_SECONDS / item_seconds)
    return MicroBatchRecord(dimension, items, item_elements)


def _bytes_of_run(kernels: tvm.IRModule, sizes: Mapping[str, int]) -> float | None:
    """Bytes of the parameters of all calls; None where ``sizes`` do not decide some."""
    gathered: dict[str, dict[str, int]] = {}
    total = 0.0
    for name, arguments in calls_at(kernels, sizes):
        if arguments is None:
            return None
        params = kernels[name].params
        read = gathered.setdefault(name, _gathered_elements(kernels[name]))
        for param, shape in zip(params, arguments, strict=True):
            if isinstance(shape, tuple):
                elements = math.prod(shape)
                elements = min(elements, read.get(str(param.name), elements))
                total += elements * tvm.DataType(str(param.dtype)).bits / 8
    return total


def _is_call_of_function(value: Any) -> bool:
    return isinstance(getattr(value, "op", None), tvm.ir.GlobalVar)


def calls_at(
    kernels: tvm.IRModule, sizes: Mapping[str, int]
) -> Iterator[tuple[str, tuple[tuple[int, ...] | int, ...] | None]]:
    """The kernels that ``main`` calls, with the arguments that they get at ``sizes``, by name.

    Arguments are shapes of tensors, of the results as well, and numbers; None where ``sizes`` alone
    do not decide them, or are such that the model does not take.
    """
    for binding in bindings_of(kernels["main"]):
        call = binding.value
        if operator_name(call) != "relax.call_tir":
            continue
        results = getattr(call.ty_args[0], "fields", call.ty_args[:1])
        given = [*(_shape_or_number(argument) for argument in call.args[1])]
        given += [getattr(ty, "shape", None) for ty in results]
        values = [_value_at(one, sizes) for one in given]
        known = tuple(value for value in values if value is not None)
        yield str(call.args[0].name_hint), known if len(known) == len(values) else None


def _shape_or_number(argument: relax.Expr) -> Any:
    return argument.ty.shape if isinstance(argument.ty, relax.TensorType) else argument


def _value_at(given: Any, sizes: Mapping[str, int]) -> tuple[int, ...] | int | None:
    """A shape or a number for ``sizes``; None if other sizes decide it, or it is below 0."""
    is_shape = isinstance(given, relax.ShapeExpr)
    if not is_shape and not isinstance(getattr(given, "ty", None), tvm.ir.PrimType):
        return None
    extents = list(given) if is_shape else [given]
    names = {str(var.name) for one in extents for var in tirx.analysis.undefined_vars(one)}
    values = [value_for(extent, sizes) for extent in extents]
    numbers = tuple(value for value in values if value is not None and value >= 0)
    if not names <= set(sizes) or len(numbers) < len(values):
        return None
    return numbers if is_shape else numbers[0]


def kernel_work(func: tirx.PrimFunc) -> Work:
    """Operations and bytes of one call."""
    return Work(kernel_flops(func), kernel_bytes(func), kernel_dtype(func))


def kernel_seconds(func: tirx.PrimFunc, cost_model: CostModel) -> float:
    """Modelled time of one call, whatever its schedule."""
    return cost_model.seconds(kernel_work(func))


def kernel_flops(func: tirx.PrimFunc) -> float:
    """Arithmetic operations of one call; 0 when a symbolic extent or an extern call hides them."""
    try:
        # TVM counts loops down, which sorts for GPUs have, as less than nothing.
        return max(0.0, float(estimate_tir_flops(tvm.IRModule({"main": func}))))
    except (tvm.error.InternalError, RuntimeError, ValueError, TypeError):
        return 0.0


def kernel_bytes(func: tirx.PrimFunc) -> float:
    """Bytes of all parameters, each counted once; a symbolic size counts as 1.

    Of a tensor that is read at places that the data say (an embedding's table), as many as are
    read.
    """
    gathered = _gathered_elements(func)
    total = 0.0
    for param in func.params:
        if not hasattr(param, "shape"):
            continue
        elements = math.prod(_extent(size) or 1 for size in param.shape)
        elements = min(elements, gathered.get(str(param.name), elements))
        total += elements * tvm.DataType(str(param.dtype)).bits / 8
    return total


def _gathered_elements(func: tirx.PrimFunc) -> dict[str, int]:
    """By name of a parameter that is read at indices that are themselves read, how many reads."""
    found: dict[str, int] = {}
    for block in nodes(func.body, s_tir.SBlock):
        iterations = math.prod(_extent(v.dom.extent) or 1 for v in block.iter_vars)
        for store in nodes(block.body, tirx.BufferStore) if len(block.iter_vars) else ():
            for load in nodes(store.value, tvm.ir.TensorLoad):
                if any(nodes(index, tvm.ir.TensorLoad) for index in load.indices):
                    name = str(load.source.name)
                    found[name] = found.get(name, 0) + iterations
    return found


def kernel_dtype(func: tirx.PrimFunc) -> str:
    """Element type that the arithmetic goes at the rate of: that of the result, the last parameter;
    uint8 or int8 where products of it and int8 are summed; float32 when there is no buffer.
    """
    last = func.params[-1] if len(func.params) else None
    types = {str(param.dtype) for param in func.params if hasattr(param, "shape")}
    products = map(_bytes_of, nodes(func.body, tirx.Mul)) if "int8" in types else ()
    narrow = next(filter(None, products), None)
    if narrow is not None:
        return narrow
    return str(last.dtype) if last is not None and hasattr(last, "shape") else "float32"


def _bytes_of(product: tirx.Mul) -> str | None:
    """The type that an integer product of 8 bits has beside int8; None for others."""
    if str(product.ty) != "int32":
        return None
    sides = (product.a, product.b)
    types = sorted(str(side.value.ty) for side in sides if isinstance(side, tirx.Cast))
    return types[1] if types in (["int8", "uint8"], ["int8", "int8"]) else None
