"""MkDocs hook: the command line's reference is what ``--help`` says, by Typer's own converter."""

import subprocess
import sys
from typing import Any

_PAGE = "reference/command-line.md"
_MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, *, page: Any, **_others: Any) -> str:
    """Puts all commands where the page has the mark; other pages stay as they are."""
    if page.file.src_uri != _PAGE:
        return markdown
    command = [sys.executable, "-m", "typer", "tvm_ext.cli.main", "utils", "docs"]
    done = subprocess.run(
        [*command, "--name", "tvm-ext"], capture_output=True, text=True, check=True
    )
    _title, _, commands = done.stdout.partition("\n")
    return markdown.replace(_MARK, commands)
