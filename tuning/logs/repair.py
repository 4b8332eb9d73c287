"""Takes bad lines out of a folder of records, so that plain TVM opens it again.

Nothing is thrown away: a bad line goes to a side file, with its number and what is wrong with it.
Lines of the log that a newer version wrote are not bad, and stay.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tvm_ext.configs.atomic_file import write_text
from tvm_ext.tuning.database_files import RECORDS, WORKLOADS, read_database, write_database
from tvm_ext.tuning.lines import Problem, append_line, read_lines
from tvm_ext.tuning.record_check import drop_refused
from tvm_ext.tuning.trial_log import TRIALS, trial_lines

SIDE_ENDING = ".bad"


def repair_folder(folder: Path) -> list[Problem]:
    """Moves bad lines of the three files to side files, and says which.

    Good lines stay as they are; records follow their workloads to the lines that these then have.
    A folder with nothing bad in it is not written to.

    Raises
    ------
    RecordsError
        A file cannot be read.
    OutputPathError
        A file cannot be written.
    """
    return _repair_log(folder) + _repair_database(folder)


def side_file(path: Path) -> Path:
    """Where the bad lines of a file go: an object a line, with "line", "reason" and "text"."""
    return path.with_name(path.name + SIDE_ENDING)


def _repair_log(folder: Path) -> list[Problem]:
    path = folder / TRIALS
    kept, problems = [], []
    for line in trial_lines(folder):
        if line.problem is None or line.is_newer:
            kept.append(line.text)
        else:
            problems.append(line.problem)
    if problems or _is_cut(path):
        _set_aside(path, problems)
        write_text(path, "".join(text + "\n" for text in kept))
    return problems


def _repair_database(folder: Path) -> list[Problem]:
    files = read_database(folder)
    drop_refused(files)
    paths = [folder / WORKLOADS, folder / RECORDS]
    if files.problems or any(map(_is_cut, paths)):
        for path in paths:
            _set_aside(path, [problem for problem in files.problems if problem.file == path])
        write_database(folder, files.workloads.values(), files.records)
    return files.problems


def _set_aside(path: Path, problems: Iterable[Problem]) -> None:
    reasons = {problem.line: problem.reason for problem in problems}
    if not reasons:
        return
    for number, text, _ in read_lines(path):
        if number in reasons:
            found = {"line": number, "reason": reasons[number], "text": text}
            append_line(side_file(path), json.dumps(found))


def _is_cut(path: Path) -> bool:
    """Whether the last line has no end, so that what TVM adds would be joined to it."""
    return [complete for *_, complete in read_lines(path)][-1:] == [False]
