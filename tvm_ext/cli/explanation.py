"""What a compile report says of decisions: by pass and by kernel, taken and left alone."""

from collections.abc import Iterator, Set
from typing import Any

from tvm_ext.report.compile_report import CompileReport
from tvm_ext.report.records import KernelRecord, PassRecord
from tvm_ext.report.units import format_seconds, plain


def explain(
    report: CompileReport, passes: Set[str] = frozenset(), refused_only: bool = False
) -> dict[str, Any]:
    """The decisions as JSON values.

    Parameters
    ----------
    report : CompileReport
        Of the model.
    passes : set of str
        Names of the passes to keep; all of them, and the kernels, when empty.
    refused_only : bool
        Whether to keep only what was left alone.
    """
    records = [record for record in report.passes if not passes or record.name in passes]
    if refused_only:
        records = [record for record in records if record.refused]
    kernels = [] if passes else report.kernels_by_cost
    if refused_only:
        kernels = [kernel for kernel in kernels if kernel.refusals]
    return {
        "model": report.model,
        "opt_level": report.opt_level,
        "passes": [_explain_pass(record, refused_only) for record in records],
        "kernels": [_explain_kernel(kernel) for kernel in kernels],
    }


def _explain_pass(record: PassRecord, refused_only: bool) -> dict[str, Any]:
    def listed(applied: bool) -> list[dict[str, str]]:
        return [
            {"where": decision.where, "reason": decision.reason}
            for decision in record.decisions
            if decision.applied is applied
        ]

    return {
        "name": record.name,
        "level": record.level,
        "changed": record.changed,
        "skipped": record.skipped,
        "applied": [] if refused_only else listed(True),
        "refused": listed(False),
    }


def _explain_kernel(kernel: KernelRecord) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "calls": kernel.calls,
        "origins": kernel.origins,
        "schedule": kernel.schedule,
        "source": kernel.source,
        "reason": kernel.reason,
        "refusals": kernel.refusals,
        "estimated_seconds": kernel.estimated_seconds,
    }


def explanation_text(explanation: dict[str, Any]) -> str:
    """What ``explain`` returned as text: ``+`` for what was done, ``-`` for what was left alone."""
    model, level = plain(explanation["model"]), explanation["opt_level"]
    lines = [f"{model}, optimisation {level}  (+ done, - left alone)", ""]
    for record in explanation["passes"]:
        lines += _pass_lines(record)
    if explanation["kernels"]:
        lines += ["", "Kernels, the costliest (modelled) first"]
    for kernel in explanation["kernels"]:
        lines += _kernel_lines(kernel)
    if not explanation["passes"] and not explanation["kernels"]:
        lines.append("Nothing of that kind was recorded.")
    return "\n".join(lines)


def _pass_lines(record: dict[str, Any]) -> Iterator[str]:
    effect = "changed the module" if record["changed"] else "no change"
    yield f"{plain(record['name'])}: {record['skipped'] or effect}"
    for mark, key in (("+", "applied"), ("-", "refused")):
        for decision in record[key]:
            yield f"  {mark} {plain(decision['where'])}: {plain(decision['reason'])}"


def _kernel_lines(kernel: dict[str, Any]) -> Iterator[str]:
    estimated = kernel["estimated_seconds"]
    seconds = "time not known"
    if estimated is not None:
        seconds = format_seconds(kernel["calls"] * estimated)
    yield f"{plain(kernel['name'])}: {kernel['calls']} call(s), {seconds}"
    for origin in kernel["origins"]:
        yield f"    {plain(origin)}"
    yield f"  + {kernel['schedule']} ({kernel['source']}): {plain(kernel['reason'])}"
    for refusal in kernel["refusals"]:
        yield f"  - {plain(refusal)}"
