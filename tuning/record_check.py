"""Whether TVM reads a record: it opens a database whole or not at all."""

from typing import Any

from tvm.s_tir import meta_schedule as ms

from tvm_ext.tuning.database_files import RECORDS, DatabaseFiles, StoredRecord
from tvm_ext.tuning.lines import Problem


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
