"""Reading the JSON form of a report."""

import json
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
