"""Everything that one run of the benchmark found, with what is needed to judge it, as JSON."""

import datetime
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peers import OURS, PEERS, Peer, PeerError
from results import CaseResult, geometric_means
from roofline import MachinePeaks

from tvm_ext.configs.atomic_file import write_text
from tvm_ext.hardware.cpu.description import CpuDescription

SCHEMA = 1


class Report:
    """The machine, its peaks before and after, the versions, and one result a model or kernel."""

    def __init__(self, machine: CpuDescription, peaks: MachinePeaks) -> None:
        self.machine = machine
        self.peaks = peaks
        self.peaks_after: MachinePeaks | None = None
        self.results: list[CaseResult] = []
        self._date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")

    @property
    def best_peaks(self) -> MachinePeaks:
        """The better of the two measurements, figure by figure: a roof is what was ever reached."""
        last = self.peaks_after or self.peaks
        return MachinePeaks(
            self.peaks.threads,
            max(self.peaks.core_gflops, last.core_gflops),
            max(self.peaks.gflops, last.gflops),
            max(self.peaks.core_gbs, last.core_gbs),
            max(self.peaks.gbs, last.gbs),
        )

    def add(self, result: CaseResult) -> None:
        """Adds one model or kernel."""
        self.results.append(result)

    def heading(self, peers: Sequence[Peer]) -> str:
        """What was measured on, and with what, in three lines."""
        programs = ", ".join(f"{peer.title} {_version(peer)}" for peer in [OURS, *peers])
        return (
            f"{self.machine.summary}, {self.machine.vector_bits}-bit vectors, "
            f"{threads_text(self.machine.cores)}, float32\n{programs}\n{_peaks_line(self.peaks)}"
        )

    def closing(self) -> str:
        """The peaks once more: how far the machine moved meanwhile."""
        return "afterwards " + _peaks_line(self.peaks_after or self.peaks)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; infinite differences, which JSON has no number for, as text."""
        models = [result for result in self.results if not result.group]
        kernels = [result for result in self.results if result.group]
        data = {
            "schema": SCHEMA,
            "date": self._date,
            "threads": self.machine.cores,
            "precision": "fp32",
            "machine": {
                "system": platform.platform(),
                "python": platform.python_version(),
                **self.machine.model_dump(mode="json"),
            },
            "versions": {peer.name: _version(peer) for peer in [OURS, *PEERS.values()]},
            "peaks": asdict(self.peaks),
            "peaks_after": asdict(self.peaks_after) if self.peaks_after else None,
            "geometric_means": {
                "models": geometric_means(models, PEERS),
                "kernels": geometric_means(kernels, PEERS),
            },
            "models": [result.to_dict() for result in models],
            "kernels": [result.to_dict() for result in kernels],
        }
        return _finite(data)


def write_report(report: Report, path: Path) -> None:
    """Writes the JSON; raises OutputPathError where that is not possible."""
    write_text(path, json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n")


def threads_text(count: int) -> str:
    """``1 thread``, ``2 threads``."""
    return "1 thread" if count == 1 else f"{count} threads"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    return value


def _peaks_line(peaks: MachinePeaks) -> str:
    return (
        f"measured peaks: multiply-add {peaks.core_gflops:.0f} GFLOP/s on one core, "
        f"{peaks.gflops:.0f} on {peaks.threads}; copy (bytes read + written) "
        f"{peaks.core_gbs:.1f} GB/s on one core, {peaks.gbs:.1f} on {peaks.threads}"
    )


def _version(peer: Peer) -> str:
    try:
        return peer.version()
    except PeerError:
        return "(not installed)"
