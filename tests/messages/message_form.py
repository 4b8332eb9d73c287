"""What every message must be: one line, in words of our own, that says what to do."""

import re

# What only texts of TVM, ONNX's packages, LLVM and Python itself hold.
INTERNAL = (
    *("TVMError", "InternalError", "Check failed", "Check succeeded", r"\bICHECK", "Traceback"),
    *(r"\btirx?\b\.", r"\brelax\.", r"\bs_tir\b", r"\bT\.\w+\(", r"\bR\.\w+\(", r"\btvm\.(ir|sym)"),
    *("PrimFunc", "PrimExpr", "PrimValue", "ShapeExpr", "StructInfo", "TensorType", "ShapeType"),
    *("GlobalVar", "DataflowBlock", "BlockBuilder", "FuncStructInfo", "IRModule", "CodeGenVM"),
    *("LegalizeOps", "emit_te", "call_tir", "call_packed", "match_cast", "ErrorContext"),
    *(r"\.cc\b", r"\.cu\b", r"\.h:\d", r"\.py\b", r"line \d+, in ", "0x[0-9a-f]{6,}"),
    *("object has no attribute", "NoneType", "'NoneType'", "unhashable", "not subscriptable"),
    *("positional argument", "unexpected keyword", "must be str", "cannot unpack", "list index"),
    *("out of range for type", "invalid literal", "KeyError", "ValueError", "TypeError"),
    *("AttributeError", "IndexError", "RuntimeError", "AssertionError", "RecursionError"),
    *("UnicodeDecodeError", "OSError", "<class ", r"<\w+ object", "LLVM ERROR", "onnxscript"),
    *("onnx_ir", "ONNXRuntimeError", r"\[ShapeInferenceError\]", r"\[TypeInferenceError\]"),
    *("google.protobuf", "DecodeError", "ValidationError", r"std::", "bad_alloc", "rhs is null"),
)
# A pass that is named in an option that helps is no text of TVM's.
_ALLOWED = re.compile(r"--disable-pass \w+|pass '\w+'|--pass-config \S+")
# How a message says what to do or what is expected.
_ADVICE = re.compile(
    r"expected |: \w+|nearest known|try |give |see '|install|compile (it|the)|correct|add it"
)
LONGEST = 1500


def faults(message: str) -> list[str]:
    """What is wrong with a message; nothing for one as it should be."""
    plain = _ALLOWED.sub("", message)
    found = [f"internal text: {pattern}" for pattern in INTERNAL if re.search(pattern, plain)]
    if len(message.splitlines()) != 1:
        found.append("not one line")
    if not _ADVICE.search(message):
        found.append("it does not say what to do")
    if len(message) > LONGEST:
        found.append(f"{len(message)} characters")
    return found
