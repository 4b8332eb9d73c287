"""A profile in the Trace Event Format, which Perfetto and chrome://tracing show.

The format: "Trace Event Format", Google, 2016. Its complete events ("X") have a start and a
duration in microseconds; metadata events ("M") name the process and its tracks.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm_ext.report.profile import CallTime, Profile

_PROCESS = 1
_RUN, _KERNELS, _HOST = range(1, 4)
_TRACKS = {_RUN: "one run", _KERNELS: "kernels", _HOST: "steps on the host"}


def trace(profile: "Profile") -> dict[str, Any]:
    """Return the run that stands for all: one complete event for it, and one for each call."""
    events = [_event(call) for call in profile.calls]
    tracks = sorted({_RUN, *(event["tid"] for event in events)})
    names = [_named("process_name", _RUN, name=f"{profile.model}, {profile.target}")]
    for track in tracks:
        names.append(_named("thread_name", track, name=_TRACKS[track]))
        names.append(_named("thread_sort_index", track, sort_index=track))
    return {
        "displayTimeUnit": "ns",
        "otherData": {
            "model": profile.model,
            "target": profile.target,
            "inputs": list(profile.inputs),
            "run_without_hook_us": profile.run_microseconds,
            "peaks": profile.peaks.source if profile.peaks is not None else None,
        },
        "traceEvents": [*names, _run(profile), *events],
    }


def _named(kind: str, track: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": track, "args": args}


def _complete(
    track: int, name: str, category: str, begun: float, lasted: float, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": _PROCESS,
        "tid": track,
        "ts": begun,
        "dur": lasted,
        "args": args,
    }


def _run(profile: "Profile") -> dict[str, Any]:
    args = {
        "median of a run without the hook, us": profile.run_microseconds,
        "kernels, us": profile.kernel_microseconds,
        "modelled, us": profile.total.modelled_microseconds,
    }
    name = f"{profile.model}, with a hook around each call"
    return _complete(_RUN, name, "run", 0.0, profile.traced_microseconds, args)


def _event(call: "CallTime") -> dict[str, Any]:
    cost = call.cost
    # Rates of this very call.
    here = replace(call, microseconds=call.lasted)
    args = {
        "ONNX nodes": list(call.origins),
        "kernel": call.kernel,
        "schedule": call.schedule,
        "median, us": call.microseconds,
        "modelled, us": call.modelled_microseconds,
        "FLOP": cost.flops if cost is not None else None,
        "bytes": cost.bytes if cost is not None else None,
        "GFLOP/s": here.gflops,
        "GFLOP/s, share of peak": here.flops_share,
        "GB/s": here.gbs,
        "GB/s, share of peak": here.bytes_share,
    }
    track = _HOST if call.on_host else _KERNELS
    name = " or ".join(call.origins) or call.kernel
    return _complete(track, name, call.schedule, call.begun, call.lasted, args)
