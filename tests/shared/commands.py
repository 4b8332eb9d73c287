"""Commands of ``tvm-ext`` in this process: what they print, and how they end."""

import json
from typing import Any

from typer.testing import CliRunner, Result

from tvm_ext.cli.main import app


def invoke(*arguments: object) -> Result:
    """The outcome of a command, whatever its exit code."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def succeed(*arguments: object) -> str:
    """What a command prints that has to succeed."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(*arguments: object) -> Any:
    """What a command prints as JSON."""
    return json.loads(succeed(*arguments, "--json"))


def refused(*arguments: object) -> str:
    """The one line on stderr with which a command refuses its arguments."""
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith("\n")
    return result.stderr
