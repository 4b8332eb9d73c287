"""Every refusal that can be provoked is one line in words of our own."""

import ast
from pathlib import Path

import failure_cases  # noqa: F401
import file_cases  # noqa: F401
import generation_cases  # noqa: F401
import graph_cases  # noqa: F401
import option_cases  # noqa: F401
import pytest
from message_form import faults
from provoked import CASES

import tvm_ext


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_refusal_says_what_to_do_in_words_of_our_own(case, tmp_path):
    message = case.message(tmp_path)
    assert faults(message) == [], message
    for word in case.says:
        assert word in message


def test_names_are_distinct():
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize(
    "text",
    [
        "Check failed: (a == b) is false; expected equal ones: give others",
        "it cannot be converted ('NoneType' object has no attribute 'shape'): give shapes",
        "relax.sqrt requires argument 0 (x) to be a tensor; expected one: give it",
        "two lines\nof text; expected one: drop the other",
        "something is wrong",
    ],
)
def test_internal_texts_are_seen(text):
    assert faults(text)


def test_the_front_end_raises_its_own_errors_only():
    """The texts of others are not shown: a converter that raised one would be silent."""
    folder = Path(tvm_ext.__file__).parent / "onnx_frontend"
    builtin = [
        f"{file.name}:{node.lineno}"
        for file in folder.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and isinstance(node.exc.func, ast.Name)
        and node.exc.func.id in ("ValueError", "TypeError", "NotImplementedError", "RuntimeError")
    ]
    assert builtin == []
