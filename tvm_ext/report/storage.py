"""Reading the JSON form of a report, and writing its page so that no reader sees half of it."""

import contextlib
import json
import os
import uuid
from pathlib import Path
from typing import Any

from tvm_ext.report.errors import ReportError


def parse(text: str, schema: int) -> dict[str, Any]:
    """Return the JSON object in ``text``.

    Raises
    ------
    ReportError
        If the text is not a JSON object, or its "schema" is not ``schema``.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise not_a_report(f"not JSON: {error}", schema) from error
    if not isinstance(data, dict):
        raise not_a_report(f"a JSON {type(data).__name__}, not an object", schema)
    version = data.get("schema")
    if version != schema:
        raise ReportError(
            f"found a compile report with schema {version!r}, expected schema {schema}: "
            "read it with the release that wrote it, or compile the model again"
        )
    return data


def not_a_report(found: str, schema: int) -> ReportError:
    """Return the error for text that is not the JSON form of a report."""
    return ReportError(
        f"not a compile report ({found}); expected the JSON form of one, schema {schema}: "
        "compile the model again"
    )


def write_atomically(path: str | Path, text: str) -> None:
    """Write ``text`` as UTF-8; a reader of ``path`` sees the old file or the whole new one.

    Raises
    ------
    ReportError
        If the file cannot be written; nothing is left behind.
    """
    destination = Path(path).resolve()
    partial = destination.with_name(f".{uuid.uuid4().hex}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, destination)
    except OSError as error:
        raise ReportError(
            f"the report cannot be written to {str(path)!r} ({error.strerror or error}); "
            "expected a file in a folder that exists and is writable: choose another path"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # moved already, or never made
            partial.unlink()
