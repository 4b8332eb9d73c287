"""The constants of a header: any name fits into C, any size into its table."""

import pytest

from tvm_ext.export.library_folder import comment_text, header_values, identifier, string_literal
from tvm_ext.tensor_spec import SizeRange, TensorSpec


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("rapid-ocr v2", "rapid_ocr_v2"), ("9x9", "model_9x9"), ("模型", "model"), ("_a_", "a")],
)
def test_identifiers(text: str, wanted: str) -> None:
    assert identifier(text) == wanted


def test_strings_hold_any_name() -> None:
    assert string_literal('a"\\?\n1é') == '"a\\042\\134\\077\\0121\\303\\251"'
    assert comment_text("a*/b/*c\nd") == "a* /b/ *c?d"


def test_sizes_of_a_run_are_places_in_a_table() -> None:
    inputs = [
        TensorSpec("x", "float32", ("N", 3, "w"), (SizeRange(1, 8), None, None)),
        TensorSpec("s", "int64", ()),
    ]
    outputs = [TensorSpec("y", "int4", ("w", "N")), TensorSpec("z", "bool", ("...",))]
    values = header_values(inputs, outputs, ["y"])
    assert values["size_names"] == ['"N"', '"w"']
    assert values["out_params"] == [0]
    x, s = values["inputs"]
    assert (x.shape, x.least, x.most) == ("{-1, 3, -2}", "{1, 0, 0}", "{8, INT64_MAX, INT64_MAX}")
    assert (s.rank, s.shape, s.least, s.dtype) == ("0", "", "", "{kDLInt, 64, 1}")
    y, z = values["outputs"]
    assert (y.dtype, y.comment) == ("{kDLInt, 8, 1}", "y: int4['w', 'N'], each in a byte: int8")
    assert (z.rank, z.shape, z.dtype) == ("-1", "", "{kDLBool, 8, 1}")
