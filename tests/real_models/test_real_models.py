"""The sweep's own parts: its catalogue, the drawing of inputs, the comparison, the page.

The models themselves are exported and compared by hand: ``make models``.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
from catalogue import ENTRIES, all_cases
from catalogue.entry import DYNAMIC, Entry, Input, floats, integers, mask
from difference import Different, largest_difference
from drawing import declared_inputs, draw_inputs, size_of
from exporters import EXPORTERS
from outcome import MATCH, NO_REFERENCE, REFUSED, ModelOutcome
from page import models_page


def test_the_catalogue_is_large_and_names_its_models_once():
    names = [entry.name for entry in ENTRIES]
    assert len(names) > 120
    assert len(set(names)) == len(names)
    assert {exporter for entry in ENTRIES for exporter in entry.exporters} <= set(EXPORTERS)


def test_every_case_has_a_folder_and_sizes_that_its_inputs_name(tmp_path):
    cases = all_cases(tmp_path)
    assert len({case.folder for case in cases}) == len(cases)
    for entry in ENTRIES:
        for sizes in entry.sizes:
            for one in entry.inputs.values():
                assert all(size_of(size, sizes) >= 0 for size in one.shape)


def test_a_dimension_may_be_what_an_exporter_wrote():
    sizes = {"past": 3, "length": 2}
    assert size_of("past + length", sizes) == 5
    assert size_of("2*length", sizes) == 4
    with pytest.raises(KeyError):
        size_of("unknown + 1", sizes)


def test_inputs_are_drawn_as_described():
    inputs = {
        "x": floats("rows", 3),
        "tokens": integers("rows", 4, low=5, high=7),
        "mask": mask("rows", 6),
        "words": Input("str", ("rows", 1), words=("a", "b")),
        "length": Input("int64", (), "value", 9),
    }
    drawn = draw_inputs(inputs, {"rows": 2}, seed=1)
    assert drawn["x"].shape == (2, 3)
    assert drawn["x"].dtype == np.float32
    assert set(drawn["tokens"].ravel()) <= {5, 6}
    assert (np.diff(drawn["mask"], axis=1) <= 0).all()
    assert (drawn["mask"].sum(1) >= 3).all()
    assert set(drawn["words"].ravel()) <= {"a", "b"}
    assert drawn["length"] == 9
    again = draw_inputs(inputs, {"rows": 2}, seed=1)
    assert all(np.array_equal(drawn[name], again[name]) for name in inputs)


def test_a_file_says_which_inputs_it_takes(tmp_path):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        "g (float[N, 2] x, int64[N, past] attention_mask) => (float[N, 2] y) { y = Neg(x) }"
    )
    onnx.save(model, tmp_path / "model.onnx")
    entry = Entry("e", "f", (), dict, {"x": floats(7, 2), "unread": floats(1)}, ())
    found = declared_inputs(tmp_path / "model.onnx", entry)
    assert found["x"] == entry.inputs["x"]
    assert found["attention_mask"] == Input("int64", ["N", "past"], "mask")
    assert list(found) == ["x", "attention_mask"]


def test_equal_values_do_not_differ():
    array = np.array([1.0, np.nan, np.inf], np.float32)
    maps = [{"a": 0.5, "b": 0.25}]
    labels = np.array(["a", "b"], object)
    both = {"array": array, "maps": maps, "labels": labels, "sequence": [array, array]}
    assert largest_difference(both, dict(both)) == 0.0
    near = {"array": np.array([1.0, 2.0002], np.float32)}
    wanted = {"array": np.array([1.0, 2.0], np.float32)}
    assert largest_difference(wanted, near) == pytest.approx(1e-4, rel=0.01)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (np.zeros(2, np.float32), np.zeros(3, np.float32)),
        (np.zeros(2, np.float32), np.zeros(2, np.float64)),
        (np.ones(2, np.float32), np.array([1.0, 1.1], np.float32)),
        (np.ones(2, np.float32), np.array([1.0, np.nan], np.float32)),
        (np.array([1, 2]), np.array([1, 3])),
        (np.array(["a"], object), np.array(["b"], object)),
        ([{"a": 1.0}], [{"b": 1.0}]),
        ([{"a": 1.0}], [{"a": 1.5}]),
        ([np.zeros(1)], [np.zeros(1), np.zeros(1)]),
    ],
)
def test_other_values_differ(wanted, found):
    with pytest.raises(Different, match="'y'"):
        largest_difference({"y": wanted}, {"y": found})


def test_a_missing_output_differs():
    with pytest.raises(Different, match="missing"):
        largest_difference({"y": np.zeros(1)}, {})


def outcome(name: str, status: str, **more: object) -> ModelOutcome:
    return ModelOutcome(name, "family", "dynamo", DYNAMIC, status, sizes=[{"batch": 2}], **more)  # type: ignore[arg-type]


def test_the_page_counts_what_onnx_runtime_runs():
    page = models_page(
        [
            outcome("one", MATCH, difference=2e-6, ratio=2.0),
            outcome("two", REFUSED, reason="a | b"),
            outcome("three", NO_REFERENCE, reason="refused"),
        ],
        untried=7,
    )
    assert "7 cases of the catalogue are not tried yet" in page
    assert "2 models in 2 files that ONNX Runtime runs: **1 match (50.0 %)**" in page
    assert "| one | dynamo | dynamic | batch=2 | match | 2.0e-06 | 2.00 |" in page
    assert "| two | dynamo | dynamic | refused | a \\| b |" in page
    assert "no reference: refused" in page


def test_outcomes_are_kept(tmp_path: Path):
    kept = outcome("one", MATCH, difference=0.5)
    kept.write(tmp_path / "x.outcome")
    assert ModelOutcome.read(tmp_path / "x.outcome") == kept
