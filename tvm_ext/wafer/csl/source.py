"""Prints modules of the csl dialect as files of CSL, and lets nothing through half."""

import io
import re
from typing import Any

from xdsl.backend.csl.print_csl import print_to_csl
from xdsl.utils.exceptions import VerifyException

from tvm_ext.wafer.csl.errors import CslError

# The printer writes these for what it does not know, and goes on as if nothing had happened.
_UNKNOWN = re.compile(r"//\s*unknown op|<!?unknown ")
_FILE = "// FILE: "
_BETWEEN = "// -----"


def csl_source(module: Any) -> dict[str, str]:
    """The text of each file, by name with its ending.

    Raises CslError when the operations are no valid program, or when the printer does not know one
    of them: it would leave a comment in its place, and no error.

    Parameters
    ----------
    module
        A ``builtin.module`` of ``csl.module`` operations.
    """
    printed = io.StringIO()
    try:
        module.verify()
        print_to_csl(module, printed)
    except (VerifyException, ValueError, RuntimeError, AssertionError, KeyError) as error:
        reason = str(error).splitlines()[-1] if str(error) else type(error).__name__
        raise CslError(
            f"xDSL cannot print the program: {reason}; expected operations of its csl dialect"
        ) from error
    return _files(printed.getvalue())


def _files(text: str) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if _UNKNOWN.search(line):
            raise CslError(
                f"xDSL's printer does not know part of the program: '{line.strip()}'; expected "
                "what its csl dialect can print"
            )
        if line.startswith(_FILE):
            name = f"{line.removeprefix(_FILE)}.csl"
            found[name] = []
        elif line != _BETWEEN:
            found[name].append(line.rstrip())
    return {file: "\n".join(lines).strip() + "\n" for file, lines in found.items()}
