"""Files that grow by a line at a time, and may have been cut or damaged."""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from tvm_ext.configs.atomic_file import OutputPathError
from tvm_ext.configs.errors import RecordsError


@dataclass(frozen=True)
class Problem:
    """A line that cannot be used.

    Attributes
    ----------
    file : Path
        Where.
    line : int
        Its number, from 1; 0 for the file as a whole.
    reason : str
        What is wrong with it.
    """

    file: Path
    line: int
    reason: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else str(self.file)
        return f"{place}: {self.reason}"


def read_lines(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Number, text and whether it is complete (ends in a line break) of every line.

    Bytes that are no UTF-8 are replaced: whoever parses the line finds them. A file that does not
    exist has no lines.

    Raises
    ------
    RecordsError
        What is there cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                yield number, raw.decode("utf-8", "replace").rstrip("\r\n"), raw.endswith(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise RecordsError(
            f"cannot read {str(path)!r}: {error.strerror or error}; expected a file with read "
            "permission: check the path"
        ) from error


def strict_json(text: str) -> Any:
    """The JSON value of a line. Raises ValueError for all that is not JSON by the standard.

    Python's own reader takes NaN, infinity and halves of characters, which other readers, TVM's
    among them, do not.
    """
    if not text.strip():
        raise ValueError("an empty line")
    try:
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise ValueError("not JSON (nested too deeply)") from error
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from error
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value


def append_line(path: Path, line: str) -> None:
    """Adds one line in one write, and returns when it is on the disk.

    What an interrupted write left behind gets a line break first, so that it damages no other.

    Raises
    ------
    OutputPathError
        The file cannot be written.
    """
    try:
        with path.open("ab+") as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
            cut = size > 0 and file.read(1) != b"\n"
            file.write(("\n" * cut + line + "\n").encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OutputPathError(
            f"cannot add to {str(path)!r}: {error.strerror or error}; expected a file in a folder "
            "with write permission and free space: make room or choose another folder"
        ) from error


# Keeps two programs from writing to one folder of records.


LOCK = ".lock"


def locked(folder: Path) -> IO[str]:
    """Makes the folder if need be, and keeps others out of it until the file is closed.

    Where the system cannot lock files, nobody is kept out.

    Raises
    ------
    RecordsError
        Somebody else writes to the folder, or it cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("w", encoding="ascii")
    except OSError as error:
        raise RecordsError(
            f"cannot write records to {str(folder)!r}: {error.strerror or error}; expected a "
            "folder with write permission: choose another with --output"
        ) from error
    if os.name != "posix":
        return file
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise RecordsError(
            f"another session writes to {str(folder)!r}; expected one at a time: wait for it or "
            "choose another folder with --output ('tvm-ext logs merge' joins them)"
        ) from error
    return file
