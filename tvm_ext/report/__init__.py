"""What a compilation did and why: records, and their text, JSON and HTML forms."""

from tvm_ext.report.compile_report import CompileReport, ReportError
from tvm_ext.report.records import (
    Decision,
    GraphRecord,
    KernelRecord,
    MemoryRecord,
    ModuleCounts,
    PassRecord,
    PhaseRecord,
)

__all__ = [
    "CompileReport",
    "Decision",
    "GraphRecord",
    "KernelRecord",
    "MemoryRecord",
    "ModuleCounts",
    "PassRecord",
    "PhaseRecord",
    "ReportError",
]
