"""Writes docs/operators.md from the table of operators: ``make docs``."""

import sys
from collections import Counter
from pathlib import Path

import onnx

from tvm_ext.configs.atomic_file import write_text
from tvm_ext.onnx_frontend.operator_table import (
    EXPANDED,
    ON_HOST,
    SUPPORTED,
    UNSUPPORTED,
    all_operators,
)

_ORDER = (SUPPORTED, EXPANDED, ON_HOST, UNSUPPORTED)

_HEAD = """# ONNX operators

Written by `make docs` from the table that `tvm-ext compile --dry-run` prints; do not edit.

- **supported**: has a converter, ours or TVM's;
- **by expansion**: is taken apart into other operators first, by the function body in ONNX's
  schema or by a rewrite;
- **on the host**: is about strings, sequences, maps or optionals, and computed with NumPy around
  the compiled code;
- **unsupported**: a model with it is refused, with the names of its nodes.

Operator sets 7 to {newest} of the default domain. A supported operator may have forms that are
refused in one line that names the node and the form: `tvm-ext compile --dry-run model.onnx` tries
all of a model's. Where strings, sequences whose length is known only in a run, maps or optionals
meet any operator, the host computes it, by the onnx package's reference implementation if need be.
"""


def operators_page() -> str:
    """The page, as Markdown."""
    found = all_operators()
    counts = Counter(found.values())
    lines = [_HEAD.format(newest=onnx.defs.onnx_opset_version())]
    lines.append(", ".join(f"{counts[one]} {one}" for one in _ORDER) + ".\n")
    for domain in dict.fromkeys(key.rpartition("::")[0] for key in found):
        lines += [f"## {domain or 'ai.onnx (the default domain)'}\n"]
        lines += ["| operator | support |", "| --- | --- |"]
        for key, support in found.items():
            if key.rpartition("::")[0] == domain:
                lines.append(f"| {key.rpartition('::')[2]} | {support} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), operators_page())
