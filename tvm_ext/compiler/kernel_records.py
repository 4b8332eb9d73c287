"""What the report says of each kernel: work, modelled time, schedule and origin."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_ext.compiler.kernel_versions import kernel_versions
from tvm_ext.compiler.kernel_work import (
    KernelWork,
    formula,
    has_known_sizes,
    kernel_work,
    named_sizes,
    sizes_of,
    with_values,
)
from tvm_ext.hardware.cost_model import CostModel, Work
from tvm_ext.relay_passes.expressions import operator_name, sizes_of_params, value_for
from tvm_ext.relay_passes.spans import bindings_of
from tvm_ext.report.formulas import FormulaError, evaluate, identifier, total
from tvm_ext.report.records import (
    KernelCall,
    KernelRecord,
    MicroBatchRecord,
    RunWork,
    SizesRecord,
    SymbolicRecord,
)
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent
from tvm_ext.tir_schedules.schedule_kernels import ScheduleChoice

_UNSCHEDULED = ScheduleChoice("as written", "as written", "ScheduleKernels did not run")


def kernel_records(
    unscheduled: tvm.IRModule,
    calls: Sequence[KernelCall],
    choices: dict[str, ScheduleChoice],
    cost_model: CostModel,
    asked_records: bool = False,
    final: tvm.IRModule | None = None,
) -> list[KernelRecord]:
    """One record a kernel, in the order of first calls.

    ``asked_records``: whether the user gave tuned records, so that a miss is worth a word;
    ``final``: the kernels as code is made of them, for the versions that they have.
    """
    origins: dict[str, list[str]] = {}
    for call in calls:
        origins.setdefault(call.kernel, []).append(call.where)
    # Without those of which another kernel has the same code.
    functions = final.functions_items() if final is not None else ()
    as_code = {str(var.name_hint): func for var, func in functions}
    records = []
    for name, places in origins.items():
        func = unscheduled[name]
        choice = choices.get(name, _UNSCHEDULED)
        work = kernel_work(func)
        known = work.at({}) if has_known_sizes(func) else None
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
                flops=known.flops if known else None,
                bytes=known.bytes if known else None,
                estimated_seconds=cost_model.seconds(known) if known else None,
                tuned="hit" if hit else "miss" if asked_records else "",
                miss=choice.miss if asked_records else "",
                dtype=work.dtype,
                symbolic=None if known else _symbolic(func, work, as_code.get(name)),
            )
        )
    return records


def _symbolic(func: tirx.PrimFunc, work: KernelWork, final: tirx.PrimFunc | None) -> SymbolicRecord:
    names = named_sizes(func)
    by_place = {place: names[size] for size, place in sizes_of(func).items()}
    return SymbolicRecord(
        sizes={names[size]: list(place) for size, place in sizes_of(func).items()},
        flops=formula(work.flops, names),
        bytes=formula(work.bytes, names),
        versions=[] if final is None else kernel_versions(final, by_place),
    )


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


# What is known of runs of other sizes.

# Formulas longer than this are for no reader.
_LONGEST_FORMULA = 60
# As long, a sum has fewer terms than Python reads one within the other.
_LONGEST_SUM = 3000
# As TVM prints it.
_INTEGER = re.compile(r"T\.int64\((-?\d+)\)")


def nominal_figures(
    kernels: tvm.IRModule,
    records: Sequence[KernelRecord],
    sizes: Mapping[str, int],
    storage_bytes: tvm.ir.Expr | None,
    cost_model: CostModel,
) -> tuple[SizesRecord, list[KernelRecord]]:
    """Figures of a run at ``sizes``, by name of the inputs' dimensions, and formulas for any.

    ``kernels`` are the lowered functions, ``main`` among them, which calls them; the ``records`` of
    kernels whose sizes a run decides come back with their share.
    """
    may_branch = _has_branches(kernels)
    work = {} if may_branch else _work_of_calls(kernels)
    known = {name: _work_of_run(calls, sizes, cost_model) for name, calls in work.items()}
    records = [
        record if record.flops is not None else replace(record, nominal=known.get(record.name))
        for record in records
    ]
    every = [call for calls in work.values() for call in calls]
    run = None if may_branch else _work_of_run(every, sizes, cost_model)
    nbytes = None if storage_bytes is None else value_for(storage_bytes, sizes)
    text = _INTEGER.sub(lambda found: f"{int(found[1]):,}", str(storage_bytes))
    is_short = len(text) <= _LONGEST_FORMULA and "T." not in text
    nominal = SizesRecord(
        sizes=dict(sizes),
        memory_bytes=nbytes if nbytes is not None and nbytes >= 0 else None,
        memory_formula=text if storage_bytes is not None and is_short else "",
        flops=None if run is None else run.flops,
        estimated_seconds=None if run is None else run.estimated_seconds,
        work=run,
    )
    return nominal, records


@dataclass(frozen=True)
class _CallWork:
    """What a call does, as formulas of the model's sizes; empty where these do not decide it."""

    flops: str
    bytes: str
    dtype: str


def _work_of_calls(kernels: tvm.IRModule) -> dict[str, list[_CallWork]]:
    """By kernel, the work of each of its calls in ``main``."""
    dimensions = {size: identifier(str(size.name)) for size in sizes_of_params(kernels["main"])}
    if len(set(dimensions.values())) < len(dimensions):
        # Two names that are one in a formula.
        dimensions = {}
    works: dict[str, KernelWork] = {}
    known: dict[tuple[str, str], _CallWork] = {}
    found: dict[str, list[_CallWork]] = {}
    for name, given in _calls(kernels):
        key = name, str(given)
        if key not in known:
            func = kernels[name]
            if name not in works:
                works[name] = kernel_work(func)
            work = works[name]
            own = _given_sizes(func, given)
            flops, nbytes = (
                formula(with_values(one, own), dimensions) for one in (work.flops, work.bytes)
            )
            known[key] = _CallWork(flops, nbytes, work.dtype)
        found.setdefault(name, []).append(known[key])
    return found


def _given_sizes(func: tirx.PrimFunc, given: Sequence[Any]) -> dict[tirx.Var, Any]:
    """What a call gives for a kernel's sizes, as expressions of the caller's."""
    return {
        size: given[place] if axis < 0 else given[place][axis]
        for size, (place, axis) in sizes_of(func).items()
        if given[place] is not None
    }


def _work_of_run(
    calls: Sequence[_CallWork], sizes: Mapping[str, int], cost_model: CostModel
) -> RunWork | None:
    """The work of some calls together; None where the data decide some of it."""
    if not all(call.flops and call.bytes for call in calls):
        return None
    try:
        amounts = [(evaluate(one.flops, sizes), evaluate(one.bytes, sizes)) for one in calls]
    except FormulaError:
        return None
    if any(min(amount) < 0 for amount in amounts):
        # Sizes that the model does not take: an image into which no window fits.
        return None
    work = [
        Work(float(flops), float(nbytes), one.dtype)
        for one, (flops, nbytes) in zip(calls, amounts, strict=True)
    ]
    return RunWork(
        flops=sum(one.flops for one in work),
        bytes=sum(one.bytes for one in work),
        estimated_seconds=sum(map(cost_model.seconds, work)),
        flops_formula=_shown(total(call.flops for call in calls)),
        bytes_formula=_shown(total(call.bytes for call in calls)),
    )


def _shown(text: str) -> str:
    """A formula that a report holds; empty for one of hundreds of terms, which nobody reads."""
    return text if len(text) <= _LONGEST_SUM else ""


def _has_branches(kernels: tvm.IRModule) -> bool:
    """Whether a run may make other calls than those that stand in ``main``."""
    bound = [binding.value for binding in bindings_of(kernels["main"])]
    return any(isinstance(value, relax.If) or _is_call_of_function(value) for value in bound)


# A micro-batch reads and writes arrays of its own this many times as much as weights, and takes
# this long, the calls of kernels not counted, and this many times as long as they: what is faster
# has several items go through each kernel together.
_OWN_TO_WEIGHTS = 4.0
_LEAST_SECONDS = 500e-6
_WORK_TO_CALLS = 10.0


def micro_batch(
    nominal: SizesRecord, dimension: str, item_elements: int, call_seconds: float
) -> MicroBatchRecord | None:
    """How a batch whose items are independent is cut into micro-batches; None if not at all.

    The inputs of one item have ``item_elements`` elements at the ``nominal`` sizes, and the calls
    of a run's kernels take ``call_seconds`` of the modelled time whatever their work.
    """
    if nominal.work is None or nominal.work.estimated_seconds <= 0:
        return None
    nbytes = nominal.work.bytes_formula
    if not nbytes:
        return None
    one, two = (evaluate(nbytes, {**nominal.sizes, dimension: items}) for items in (1, 2))
    if two <= one:
        return None
    own = two - one
    item_seconds = (nominal.work.estimated_seconds - call_seconds) / nominal.sizes[dimension]
    if item_seconds <= 0:
        return None
    least = max(_LEAST_SECONDS, _WORK_TO_CALLS * call_seconds)
    items = max(_OWN_TO_WEIGHTS * max(one - own, 0.0) / own, least / item_seconds)
    return MicroBatchRecord(dimension, items, item_elements)


def _is_call_of_function(value: Any) -> bool:
    return isinstance(getattr(value, "op", None), tvm.ir.GlobalVar)


def calls_at(
    kernels: tvm.IRModule, sizes: Mapping[str, int]
) -> Iterator[tuple[str, tuple[tuple[int, ...] | int, ...] | None]]:
    """The kernels that ``main`` calls, with the arguments that they get at ``sizes``, by name.

    Arguments are shapes of tensors, of the results as well, and numbers; None where ``sizes`` alone
    do not decide them, or are such that the model does not take.
    """
    for name, given in _calls(kernels):
        values = [_value_at(one, sizes) for one in given]
        known = tuple(value for value in values if value is not None)
        yield name, known if len(known) == len(values) else None


def first_arguments(
    kernels: tvm.IRModule, sizes: Mapping[str, int]
) -> dict[str, tuple[tuple[int, ...] | int, ...] | None]:
    """By the name of each kernel that ``main`` calls, the arguments of its first call."""
    found: dict[str, tuple[tuple[int, ...] | int, ...] | None] = {}
    for name, given in calls_at(kernels, sizes):
        found.setdefault(name, given)
    return found


def _calls(kernels: tvm.IRModule) -> Iterator[tuple[str, list[Any]]]:
    """The kernels that ``main`` calls, with the shapes of tensors, of the results as well, and the
    numbers that they get; None for a shape that is not known.
    """
    for binding in bindings_of(kernels["main"]):
        call = binding.value
        if operator_name(call) == "relax.call_tir":
            results = getattr(call.ty_args[0], "fields", call.ty_args[:1])
            given = [*(_shape_or_number(argument) for argument in call.args[1])]
            given += [getattr(ty, "shape", None) for ty in results]
            yield str(call.args[0].name_hint), given


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
