"""Small folders of records: two or three matmuls, their trials, and damage of every kind."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import tvm
from tvm import s_tir, te
from tvm.s_tir import meta_schedule as ms

from tvm_ext.tir_schedules.recorded_schedule import kernel_hash, template_trace, workload
from tvm_ext.tir_schedules.template import FixedDecisions
from tvm_ext.tuning.candidate import plain_json
from tvm_ext.tuning.logs.database_files import (
    StoredRecord,
    StoredWorkload,
    stored_record,
    stored_workload,
    write_database,
)
from tvm_ext.tuning.logs.record_folder import side_file
from tvm_ext.tuning.logs.trial_log import Trial, append_trial

TARGET = tvm.target.Target(
    {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3", "num-cores": 2}
)
OTHER_TARGET = tvm.target.Target(
    {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512", "num-cores": 8}
)


@cache
def matmul(size: int) -> tvm.IRModule:
    """A square matmul, alone under the name "main"."""
    a, b = (te.placeholder((size, size), name=name) for name in "AB")
    k = te.reduce_axis((0, size), "k")
    product = te.compute(
        (size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="product"
    )
    return workload(te.create_prim_func([a, b, product]))


@cache
def stored(size: int) -> StoredWorkload:
    return stored_workload(matmul(size))


def hash_of(size: int) -> str:
    return kernel_hash(matmul(size))


def split_trace(size: int, factor: int = 2) -> s_tir.schedule.Trace:
    """A trace of primitives."""
    sch = s_tir.Schedule(matmul(size))
    rows, _, _ = sch.get_loops(sch.get_sblock("product"))
    sch.split(rows, [None, factor])
    return sch.trace


def decided_trace(size: int, **decisions: int) -> s_tir.schedule.Trace:
    """A trace that notes a template with its decisions."""
    chosen = FixedDecisions(decisions)
    for name in decisions:
        chosen.pick(name, (1, 2, 4, 8), 1)
    return template_trace(matmul(size)["main"], "register tile", chosen)


def record(
    size: int,
    seconds: float = 1e-6,
    target: tvm.target.Target = TARGET,
    trace: s_tir.schedule.Trace | None = None,
) -> StoredRecord:
    return stored_record(stored(size), trace or split_trace(size), [seconds], target)


def trial(size: int = 8, target: tvm.target.Target = TARGET, **changes: Any) -> Trial:
    values: dict[str, Any] = {
        "run": "session1",
        "kernel": hash_of(size),
        "kernel_name": f"matmul{size}",
        "origins": [f"MatMul_{size}", f"MatMul_{size}_again"],
        "model": "tiny",
        "candidate": f"{size:016x}",
        "template": "register tile",
        "decisions": {"rows": 4, "columns": 2},
        "trace": plain_json(split_trace(size).as_json()),
        "target": plain_json(dict(target.export())),
        "versions": {"tvm": "0.27.0", "tvm-ext": "0.1.0"},
        "host_cpu": "a CPU",
        "status": "ok",
        "seconds": 1e-6,
        "spread": 0.01,
        "build_seconds": 1.0,
        "run_seconds": 0.5,
        "time": "2026-11-21T10:00:00.000+00:00",
    }
    return Trial(**(values | changes))


def failed_trial(size: int, status: str, candidate: str, **changes: Any) -> Trial:
    return trial(
        size, status=status, seconds=None, message="it broke", candidate=candidate, **changes
    )


def kernel_trials(size: int, best: float = 1e-6, default: float = 3e-6) -> list[Trial]:
    """The default, a better one that is confirmed, and one that failed."""
    first, second, third = (f"{size:08x}{number:08x}" for number in range(3))
    at = "2026-11-21T10:0{}:00.000+00:00".format
    return [
        trial(size, candidate=first, is_default=True, decisions={}, seconds=default, time=at(0)),
        trial(size, candidate=second, seconds=best * 0.9, time=at(1)),
        failed_trial(size, "wrong", third, time=at(2)),
        trial(size, candidate=second, seconds=best, purpose="confirm", time=at(3)),
    ]


def write_folder(
    folder: Path,
    sizes: tuple[int, ...] = (8, 4),
    best: Mapping[int, float] | float = 1e-6,
    trials: Callable[[int, float], list[Trial]] = kernel_trials,
) -> Path:
    """A folder as a session leaves it: two records of each kernel, and ``trials`` of it."""
    folder.mkdir(parents=True, exist_ok=True)
    times = best if isinstance(best, Mapping) else dict.fromkeys(sizes, best)
    records = []
    for size in sizes:
        for one in trials(size, times[size]):
            append_trial(folder, one)
        records.append(record(size, 3e-6, trace=split_trace(size, 4)))
        records.append(record(size, times[size], trace=decided_trace(size, rows=4, columns=2)))
    write_database(folder, [stored(size) for size in sizes], records)
    return folder


def standard_records() -> list[tuple[str, float, str]]:
    """What ``opened`` says of a folder that ``write_folder`` wrote without further arguments."""
    return sorted((hash_of(size), time, "x86-64-v3") for size in (8, 4) for time in (3e-6, 1e-6))


def side_lines(path: Path) -> list[dict[str, Any]]:
    """The bad lines that were moved out of a file."""
    return [json.loads(line) for line in side_file(path).read_text("utf-8").splitlines()]


def opened(folder: Path) -> list[tuple[str, float, str]]:
    """What plain TVM reads: kernel, seconds and CPU of each record, sorted."""
    database = ms.database.JSONDatabase(work_dir=str(folder))
    return sorted(
        (
            kernel_hash(one.workload.mod),
            float(one.run_secs[0]),
            str(one.target.attrs["mcpu"]),
        )
        for one in database.get_all_tuning_records()
    )


def lines_of(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text("utf-8").splitlines()


def write_lines(folder: Path, name: str, lines: list[str]) -> None:
    (folder / name).write_text("".join(line + "\n" for line in lines), "utf-8")


def insert_line(folder: Path, name: str, number: int, text: str) -> None:
    """Puts a line before line ``number``, from 1."""
    lines = lines_of(folder, name)
    lines.insert(number - 1, text)
    write_lines(folder, name, lines)


def cut_end(path: Path, characters: int = 20) -> None:
    """What a power cut leaves: the last line without its end."""
    path.write_bytes(path.read_bytes()[:-characters])


def contents(folder: Path) -> dict[str, bytes]:
    """Every file with what is in it."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
