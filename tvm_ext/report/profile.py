"""A profile: where the time of a run goes, measured, beside what the cost model expects.

Its text form is in `profile_text`, the page in `profile_page`, the trace in `profile_trace`; they
are imported where they are asked for.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tvm_ext.configs.atomic_file import write_text
from tvm_ext.report.compile_report import RenderedReport
from tvm_ext.report.units import ABSENT

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class CallCost:
    """What one call, or several together, do, and how long that could take.

    Attributes
    ----------
    flops, bytes : float
        Arithmetic operations (a multiply-add is two), and bytes of all tensors, each counted once.
    modelled_microseconds : float
        Time by the cost model. Never a measured one.
    flops_microseconds, bytes_microseconds : float or None
        The least time for the operations, and for the bytes, at the machine's peaks; None where
        these are not known.
    """

    flops: float
    bytes: float
    modelled_microseconds: float
    flops_microseconds: float | None = None
    bytes_microseconds: float | None = None


def total_cost(costs: Iterable[CallCost | None]) -> CallCost | None:
    """The sum; None where one of them is not known, or there is none."""
    found = list(costs)
    known = [cost for cost in found if cost is not None]
    if not known or len(known) < len(found):
        return None
    return CallCost(
        sum(cost.flops for cost in known),
        sum(cost.bytes for cost in known),
        sum(cost.modelled_microseconds for cost in known),
        _sum(cost.flops_microseconds for cost in known),
        _sum(cost.bytes_microseconds for cost in known),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if len(known) == len(found) else None


@dataclass(frozen=True)
class Peaks:
    """What the machine can do at most.

    Attributes
    ----------
    flops : float
        Operations of float32 a second, on all threads of the model. Kernels of other types are
        compared with the peaks of these.
    bytes : float
        Bytes read from and written to main memory a second. Kernels whose tensors fit in a cache
        are compared with what that reaches.
    source : str
        Where the figures come from.
    """

    flops: float
    bytes: float
    source: str


@dataclass(frozen=True)
class Timed:
    """What took time, and how much.

    Attributes
    ----------
    calls : int
        Calls in one run.
    microseconds : float
        Measured time of all these calls in one run: the sum of the medians of the calls.
    cost : CallCost or None
        What they do together; None where sizes are not known, and for steps on the host.
    """

    calls: int
    microseconds: float
    cost: CallCost | None

    @property
    def gflops(self) -> float | None:
        """1e9 operations a second; None where not known."""
        return self._rate(self.cost.flops) if self.cost is not None else None

    @property
    def gbs(self) -> float | None:
        """1e9 bytes a second; None where not known."""
        return self._rate(self.cost.bytes) if self.cost is not None else None

    @property
    def flops_share(self) -> float | None:
        """Share of the machine's peak operations a second that is reached; None where not known."""
        return self._share(self.cost.flops_microseconds) if self.cost is not None else None

    @property
    def bytes_share(self) -> float | None:
        """Share of the peak bytes a second of the smallest memory that holds a call's tensors."""
        return self._share(self.cost.bytes_microseconds) if self.cost is not None else None

    @property
    def modelled_microseconds(self) -> float | None:
        """Modelled time of all these calls in one run; None where not known."""
        return self.cost.modelled_microseconds if self.cost is not None else None

    def figures(self) -> dict[str, Any]:
        """The numbers as JSON values."""
        cost = self.cost
        return {
            "calls": self.calls,
            "microseconds": self.microseconds,
            "modelled_microseconds": self.modelled_microseconds,
            "flops": cost.flops if cost is not None else None,
            "bytes": cost.bytes if cost is not None else None,
            "gflops": self.gflops,
            "flops_share": self.flops_share,
            "gbs": self.gbs,
            "bytes_share": self.bytes_share,
        }

    def _rate(self, amount: float) -> float | None:
        return amount / self.microseconds / 1e3 if self.microseconds > 0 else None

    def _share(self, least: float | None) -> float | None:
        return least / self.microseconds if least is not None and self.microseconds > 0 else None


def timed_together(times: Sequence[Timed]) -> Timed:
    """The sum."""
    return Timed(
        sum(time.calls for time in times),
        sum(time.microseconds for time in times),
        total_cost(time.cost for time in times),
    )


@dataclass(frozen=True)
class CallTime(Timed):
    """One call of a kernel in a run, or one step on the host.

    Attributes
    ----------
    kernel : str
        Name of the kernel, or "host" and the operator.
    origins : tuple[str, ...]
        The ONNX nodes that it computes, joined by " + ". There are several such entries where
        branches or loops leave open which of these calls of the program it was.
    schedule : str
        As in the compile report; "host" for a step on the host.
    begun, lasted : float
        When it began and how long it took in the run that stands for all, in microseconds.
    part : int
        Which compiled part of the model it belongs to, of those with steps on the host.
    versions : tuple[tuple[int, str], ...]
        Of a kernel that chooses by the sizes of a call, the number of each choice and the version
        that ran.
    """

    kernel: str
    origins: tuple[str, ...]
    schedule: str
    begun: float
    lasted: float
    part: int = 0
    versions: tuple[tuple[int, str], ...] = ()

    @property
    def on_host(self) -> bool:
        """Whether the host computed it, not the compiled program."""
        return self.schedule == HOST


HOST = "host"


@dataclass(frozen=True)
class KernelTime(Timed):
    """Measured time of one kernel, over all of its calls.

    Attributes
    ----------
    kernel : str
        Name of the kernel, or "host" and the operator.
    origins : tuple[str, ...]
        The ONNX nodes that its calls compute, those of one call joined by " + ".
    schedule : str
        As in the compile report; "host" for a step on the host.
    versions : tuple[dict[str, int], ...]
        For each choice that the kernel makes by the sizes of a call, the versions that ran in one
        run and how often; empty for kernels of one version.
    """

    kernel: str
    origins: tuple[str, ...]
    schedule: str
    versions: tuple[dict[str, int], ...] = ()

    @property
    def versions_figure(self) -> str:
        """The versions that ran, in words; empty for kernels of one version."""
        return "; ".join(
            ", ".join(f"{name}: {count:,} of {self.calls:,}" for name, count in choice.items())
            for choice in self.versions
        )

    @property
    def name(self) -> str:
        """The kernel's name, as other records of kernels call it."""
        return self.kernel


@dataclass(frozen=True)
class NodeTime(Timed):
    """Measured time of the ONNX nodes that are computed together.

    A kernel that computes several nodes has one time, which is that of all of them: it is not
    divided among them.

    Attributes
    ----------
    origins : tuple[str, ...]
        As of `CallTime`.
    kernels : tuple[str, ...]
        The kernels that compute them.
    """

    origins: tuple[str, ...]
    kernels: tuple[str, ...]


_Key = TypeVar("_Key")


# A share of the peak below this may be a time that is short by chance.
_BEYOND = 1.05


@dataclass(frozen=True)
class Profile(RenderedReport):
    """The measured time of a run, by kernel and by ONNX node.

    Attributes
    ----------
    model, target, opt_level : str
        The name of the model, the target and the optimisation level.
    inputs : tuple[str, ...]
        One line of text for each input, with its sizes in the run.
    repeat : int
        Number of runs with a hook around each kernel. There were as many runs without it.
    run_microseconds : float
        Median time of a whole run without the hook, including work on the host.
    calls : tuple[CallTime, ...]
        Every call of a kernel, in the order of the run.
    traced_microseconds : float
        Time with the hook of the run that the trace shows.
    peaks : Peaks or None
        The rates that the machine can reach at most. None if they are not known.
    program : str
        Which program of a specialised model ran, in words. Empty if there is only one program.
    """

    model: str
    target: str
    opt_level: str
    inputs: tuple[str, ...]
    repeat: int
    run_microseconds: float
    calls: tuple[CallTime, ...]
    traced_microseconds: float
    peaks: Peaks | None = None
    program: str = ""

    @cached_property
    def kernels(self) -> tuple[KernelTime, ...]:
        """Time per kernel, slowest first."""
        # Kernels of two parts may have one name.
        found = _grouped(((call.part, call.kernel), call) for call in self.calls)
        times = [
            KernelTime(
                **vars(timed_together(calls)),
                kernel=name,
                origins=tuple(dict.fromkeys(one for call in calls for one in call.origins)),
                schedule=calls[0].schedule,
                versions=_counted_versions(calls),
            )
            for (_, name), calls in found.items()
        ]
        return tuple(sorted(times, key=lambda time: -time.microseconds))

    @cached_property
    def nodes(self) -> tuple[NodeTime, ...]:
        """Time per ONNX node, or nodes that one kernel computes; slowest first."""
        found = _grouped((call.origins, call) for call in self.calls)
        times = [
            NodeTime(
                **vars(timed_together(calls)),
                origins=origins,
                kernels=tuple(dict.fromkeys(call.kernel for call in calls)),
            )
            for origins, calls in found.items()
        ]
        return tuple(sorted(times, key=lambda time: -time.microseconds))

    @property
    def host_steps(self) -> list[CallTime]:
        """The steps on the host, in the order of the run."""
        return [call for call in self.calls if call.on_host]

    @cached_property
    def total(self) -> Timed:
        """All calls of kernels together, without the steps on the host."""
        return timed_together([call for call in self.calls if not call.on_host])

    @property
    def peaks_source(self) -> str:
        """Where the peaks come from, and whether the run shows that they are too low."""
        if self.peaks is None:
            return ABSENT
        beyond = any((kernel.flops_share or 0.0) > _BEYOND for kernel in self.kernels)
        advice = "; kernels are beyond them, --measure-peaks measures" if beyond else ""
        return self.peaks.source + advice

    @property
    def kernel_microseconds(self) -> float:
        """Sum over kernels; above a whole run's time by what the hook itself costs per call."""
        return self.total.microseconds

    @property
    def unknown_calls(self) -> int:
        """Calls of kernels of which is not known what they do: the run decides their sizes."""
        return sum(call.cost is None and not call.on_host for call in self.calls)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; what is not known is None."""
        peaks = self.peaks
        return {
            "model": self.model,
            "target": self.target,
            "opt_level": self.opt_level,
            "inputs": list(self.inputs),
            "program": self.program,
            "repeat": self.repeat,
            "run_microseconds": self.run_microseconds,
            "kernel_microseconds": self.kernel_microseconds,
            "host_microseconds": sum(step.microseconds for step in self.host_steps),
            "modelled_microseconds": self.total.modelled_microseconds,
            "peaks": vars(peaks) if peaks is not None else None,
            "kernels": [
                {
                    "kernel": time.kernel,
                    "origins": list(time.origins),
                    "schedule": time.schedule,
                    "versions": [dict(choice) for choice in time.versions],
                    **time.figures(),
                }
                for time in self.kernels
            ],
            "nodes": [
                {"origins": list(time.origins), "kernels": list(time.kernels), **time.figures()}
                for time in self.nodes
            ],
        }

    def to_json(self, indent: int | None = 2) -> str:
        """Return the times by kernel and by node as JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def __rich__(self) -> "RenderableType":
        from tvm_ext.report.profile_text import renderable

        return renderable(self)

    def to_html(self) -> str:
        """Return one self-contained page, which loads nothing from anywhere."""
        from tvm_ext.report.profile_page import render_profile_html

        return render_profile_html(self)

    def to_trace(self) -> str:
        """Return one run, call by call, as JSON that Perfetto and chrome://tracing show."""
        from tvm_ext.report.profile_trace import trace

        return json.dumps(trace(self), allow_nan=False)

    def save_trace(self, path: str | Path) -> None:
        """Write the trace; raises as ``save_html``."""
        write_text(path, self.to_trace())


def _counted_versions(calls: Sequence[CallTime]) -> tuple[dict[str, int], ...]:
    """How often each version ran, by choice."""
    found: dict[int, Counter[str]] = {}
    for number, name in (version for call in calls for version in call.versions):
        found.setdefault(number, Counter())[name] += 1
    return tuple(dict(found[number].most_common()) for number in sorted(found))


def _grouped(pairs: Iterable[tuple[_Key, CallTime]]) -> Mapping[_Key, list[CallTime]]:
    groups: dict[_Key, list[CallTime]] = {}
    for key, call in pairs:
        groups.setdefault(key, []).append(call)
    return groups
