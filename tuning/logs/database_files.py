"""MetaSchedule's two files, read line by line so that a bad line costs only itself.

A workload is a line of ``database_workload.json``: [hash, base64 of the module's JSON]. A record is
a line of ``database_tuning_record.json``: [line of its workload, [trace, seconds, target,
arguments]]. TVM reads both files whole or not at all, which is why nothing here leaves a line in
them that it cannot read.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace

from tvm_ext.configs.atomic_file import write_text
from tvm_ext.configs.errors import FormError, own_words
from tvm_ext.tir_schedules.recorded_schedule import kernel_hash
from tvm_ext.tuning.candidate import argument_infos, plain_json, read_trace
from tvm_ext.tuning.logs.lines import Problem, append_line, read_lines, strict_json

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"

FAILED_SECONDS = 1e10
"""What MetaSchedule writes for the time of a candidate that failed."""


@dataclass(frozen=True)
class StoredWorkload:
    """A kernel as it is stored: its line's text, the module, and its hash."""

    text: str
    mod: tvm.IRModule
    hash: str


@dataclass(frozen=True)
class StoredRecord:
    """A tuning record as it is stored.

    Attributes
    ----------
    workload : str
        Hash of its kernel.
    trace : list
        The schedule, as values of JSON.
    seconds : float
        Mean of the measured times.
    target : dict
        Attributes of the TVM target.
    body : list
        All that stands behind the number of the workload's line.
    line : int
        Its line's number, 0 when it is new.
    """

    workload: str
    trace: Any
    seconds: float
    target: dict[str, Any]
    body: list[Any]
    line: int = 0


@dataclass
class DatabaseFiles:
    """What could be read of the two files.

    Attributes
    ----------
    workloads : dict[str, StoredWorkload]
        By hash, in the order of the file.
    records : list[StoredRecord]
        In the order of the file.
    problems : list[Problem]
        The lines that could not be read.
    folder : Path
        Where the files are.
    """

    workloads: dict[str, StoredWorkload] = field(default_factory=dict)
    records: list[StoredRecord] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    folder: Path = Path()


def read_database(folder: Path) -> DatabaseFiles:
    """Reads the files in ``folder``; they may be missing, cut or damaged. Raises RecordsError."""
    found = DatabaseFiles(folder=folder)
    by_line: dict[int, StoredWorkload] = {}
    first_line: dict[str, int] = {}
    lines = 0
    for number, text, complete in read_lines(folder / WORKLOADS):
        lines = number
        try:
            stored = _parse_workload(text)
        except _LineError as error:
            found.problems.append(Problem(folder / WORKLOADS, number, error.reason(complete)))
            continue
        by_line[number - 1] = stored
        found.workloads.setdefault(stored.hash, stored)
        if first_line.setdefault(stored.hash, number) != number:
            # TVM numbers the workloads it adds by how many different ones there are.
            reason = f"the same workload as line {first_line[stored.hash]}"
            found.problems.append(Problem(folder / WORKLOADS, number, reason))
    for number, text, complete in read_lines(folder / RECORDS):
        try:
            found.records.append(_parse_record(text, number, by_line, lines))
        except _LineError as error:
            found.problems.append(Problem(folder / RECORDS, number, error.reason(complete)))
    return found


def write_database(
    folder: Path, workloads: Iterable[StoredWorkload], records: Iterable[StoredRecord]
) -> None:
    """Writes both files anew, records pointing at the lines that their workloads now have.

    Only workloads that a record needs, or that were in use before, should be given; records of
    other workloads are an error of the caller (KeyError). Whenever this is interrupted, each record
    that is in the files points at its own workload, and none is lost that was to stay.

    Raises
    ------
    OutputPathError
        A file cannot be written.
    """
    distinct: dict[str, str] = {}
    for stored in workloads:
        distinct.setdefault(stored.hash, stored.text)
    numbers = {name: line for line, name in enumerate(distinct)}
    bodies = [(numbers[record.workload], record.body) for record in records]
    new = list(distinct.values())
    old = [text for _, text, _ in read_lines(folder / WORKLOADS)]
    if old != new[: len(old)]:
        # Lines move: the new ones go behind the old ones first, so that at any time all records
        # point at what they mean.
        start = max(len(old), len(new))
        both = [*old, *new[:1] * (start - len(old)), *new]
        _write_lines(folder / WORKLOADS, both)
        _write_records(folder, bodies, start)
        _write_lines(folder / WORKLOADS, [*new, *both[len(new) :]])
        _write_records(folder, bodies, 0)
    _write_lines(folder / WORKLOADS, new)
    _write_records(folder, bodies, 0)


def _write_records(folder: Path, bodies: list[tuple[int, list[Any]]], start: int) -> None:
    _write_lines(folder / RECORDS, [_dumps([start + line, body]) for line, body in bodies])


def _write_lines(path: Path, lines: list[str]) -> None:
    write_text(path, "".join(line + "\n" for line in lines))


def stored_workload(mod: tvm.IRModule) -> StoredWorkload:
    """A kernel as TVM stores it."""
    text = _dumps(plain_json(ms.database.Workload(mod).as_json()))
    return StoredWorkload(text, mod, kernel_hash(mod))


def stored_record(
    workload: StoredWorkload, trace: Trace, seconds: list[float], target: tvm.target.Target
) -> StoredRecord:
    """A record as TVM stores it."""
    args = argument_infos(workload.mod)
    # Not by TuningRecord.as_json, which refuses traces that transform layouts.
    body = [trace.as_json(), seconds, target.export(), [arg.as_json() for arg in args]]
    return _record(workload.hash, plain_json(body), 0)


def append_workload(folder: Path, workload: StoredWorkload) -> None:
    """Adds a workload's line; its number is the number of lines before."""
    append_line(folder / WORKLOADS, workload.text)


def append_record(folder: Path, line: int, record: StoredRecord) -> None:
    """Adds a record whose workload is on ``line``, from 0."""
    append_line(folder / RECORDS, _dumps([line, record.body]))


def trace_of(record: StoredRecord, mod: tvm.IRModule) -> Trace:
    """The trace of a record. Raises s_tir.ScheduleError or ValueError if it does not fit."""
    return read_trace(record.trace, mod)


class _LineError(ValueError):
    def reason(self, complete: bool) -> str:
        return str(self) if complete else f"cut off: {self}"


@lru_cache(maxsize=512)
def _parse_workload(text: str) -> StoredWorkload:
    data = _loads(text)
    if not (isinstance(data, list) and len(data) == 2 and isinstance(data[1], str)):
        raise _LineError("no workload: expected [hash, module]")
    try:
        mod = ms.database.Workload.from_json(data).mod
        return StoredWorkload(text, mod, kernel_hash(mod))
    except (tvm.error.InternalError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise _LineError("no module that this TVM reads") from error


def _parse_record(
    text: str, number: int, workloads: dict[int, StoredWorkload], lines: int
) -> StoredRecord:
    data = _loads(text)
    if not (isinstance(data, list) and len(data) == 2 and type(data[0]) is int):
        raise _LineError("no record: expected [workload's line, record]")
    if data[0] not in workloads:
        state = "cannot be read" if 0 <= data[0] < lines else f"does not exist: there are {lines}"
        raise _LineError(f"its workload, line {data[0] + 1} of {WORKLOADS}, {state}")
    try:
        return _record(workloads[data[0]].hash, data[1], number)
    except (TypeError, ValueError, OverflowError) as error:
        more = f" ({own_words(error)})" if own_words(error) else ""
        raise _LineError(
            f"no record: expected [trace, seconds, target, arguments]{more}"
        ) from error


def _record(workload: str, body: list[Any], line: int) -> StoredRecord:
    trace, seconds, target, _ = body
    if not isinstance(target, dict):
        raise FormError("it has no target")
    times = [float(value) for value in seconds or []]
    if any(value <= 0 for value in times):
        raise FormError("a time is not above zero")
    mean = sum(times) / len(times) if times else float("inf")
    return StoredRecord(workload, trace, mean, dict(target), body, line)


# TVM's reader knows no other escapes than these without the last.
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|(u))')


def _loads(text: str) -> Any:
    try:
        value = strict_json(text)
    except ValueError as error:
        raise _LineError(str(error)) from error
    if any(found.group(1) for found in _ESCAPE.finditer(text)):
        raise _LineError("a character is written with \\u, which TVM does not read")
    return value


def _dumps(value: Any) -> str:
    # TVM reads UTF-8, and no \\u.
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


# Whether TVM reads a record: it opens a database whole or not at all.


class RecordCheck:
    """Reads records as TVM does, which replays each trace on its workload.

    Parameters
    ----------
    files : DatabaseFiles
        Where the records are from.
    """

    def __init__(self, files: DatabaseFiles) -> None:
        self._files = files
        self._workloads: dict[str, ms.database.Workload] = {}

    def refusal(self, record: StoredRecord) -> str:
        """Why TVM cannot read a record; empty when it can."""
        found = _form(record.body)
        if found:
            return found
        if record.workload not in self._workloads:
            mod = self._files.workloads[record.workload].mod
            self._workloads[record.workload] = ms.database.Workload(mod)
        try:
            ms.database.TuningRecord.from_json(record.body, self._workloads[record.workload])
        # TVM's errors come as nearly any of Python's.
        except Exception:  # noqa: BLE001
            return "TVM cannot read it or apply it to its workload"
        return ""


def drop_refused(files: DatabaseFiles) -> None:
    """Moves the records that TVM cannot read to the problems."""
    check = RecordCheck(files)
    kept = []
    for record in files.records:
        reason = check.refusal(record)
        if reason:
            files.problems.append(Problem(files.folder / RECORDS, record.line, reason))
        else:
            kept.append(record)
    files.records = kept


def _form(body: list[Any]) -> str:
    """What is wrong with a record that would crash TVM, rather than be refused."""
    trace = body[0]
    if not (isinstance(trace, list) and len(trace) == 2 and _are_lists(trace)):
        return "its trace is no pair of instructions and decisions"
    instructions, decisions = trace
    plain = [_without_padding(instruction) for instruction in instructions]
    if _holds_null([plain, decisions, *(part or [] for part in body[1:])]):
        return "it holds a null"
    for decision in decisions:
        if not (isinstance(decision, list) and len(decision) == 2):
            return "a decision is no pair of an instruction's number and a value"
        number, value = decision
        if type(number) is not int or not 0 <= number < len(instructions):
            return f"a decision is for instruction {number!r} of {len(instructions)}"
        factors = value if isinstance(value, list) else [1]
        if any(type(factor) is not int or factor < 1 for factor in factors):
            return f"the decision {value!r} is no list of sizes"
    return ""


def _without_padding(instruction: Any) -> Any:
    """An instruction without the one attribute that may be null, the padding of a layout."""
    match instruction:
        case ["TransformLayout", inputs, [buffer, place, _, assumed], outputs]:
            return ["TransformLayout", inputs, [buffer, place, assumed], outputs]
    return instruction


def _are_lists(values: list[Any]) -> bool:
    return all(isinstance(value, list) for value in values)


def _holds_null(value: Any) -> bool:
    if isinstance(value, list):
        return any(_holds_null(item) for item in value)
    if isinstance(value, dict):
        return any(_holds_null(item) for item in value.values())
    return value is None


# What makes two TVM targets the same machine, and a target's name for people.


# Notes on a target that change nothing about the code of a kernel or its time.
_NOTES = ("tag", "keys", "host")


def target_key(target: Mapping[str, Any]) -> str:
    """Text that is equal for the attributes of targets that are the same machine.

    Left out are names ("tag", "keys"), the CPU beside a GPU ("host"), and the "feature."
    attributes, which TVM derives from the others.
    """
    kept = {
        str(key): plain_json(value)
        for key, value in target.items()
        if key not in _NOTES and not str(key).startswith("feature.")
    }
    if isinstance(kept.get("mattr"), list):
        kept["mattr"] = sorted(map(str, kept["mattr"]))
    return json.dumps(kept, sort_keys=True)


def target_text(target: Mapping[str, Any]) -> str:
    """The target in a few words, such as "znver4, 8 cores" or "cuda sm_90a"."""
    kind = str(target.get("kind", "?"))
    model = str(target.get("mcpu") or target.get("arch") or "")
    text = model if model and kind == "llvm" else f"{kind} {model}".strip()
    cores = target.get("num-cores")
    if isinstance(cores, int):
        text += f", {cores} core{'s' * (cores != 1)}"
    return text
