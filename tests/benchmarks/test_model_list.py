"""Which models are measured: from paths with shared shapes, and from TOML and JSON files."""

import json

import pytest
from model_list import FILE_FORMAT, ModelEntry, entries_of, read_model_file

from tvm_ext.errors import ConfigError, InputError


def test_the_documented_form_is_read(tmp_path):
    path = tmp_path / "models.toml"
    path.write_text(FILE_FORMAT.partition("\n\n")[2], encoding="utf-8")
    assert read_model_file(path) == [
        ModelEntry(
            "detector 320",
            tmp_path / "detector.onnx",
            {"images": [1, 3, 320, 320]},
            tmp_path / "detector.npz",
        ),
        ModelEntry("classifier", tmp_path / "classifier.onnx"),
    ]


def test_json_has_the_same_keys(tmp_path):
    path = tmp_path / "models.json"
    path.write_text(json.dumps({"model": [{"path": "/a/b.onnx", "shapes": {"x": [2]}}]}))
    (entry,) = read_model_file(path)
    assert (entry.name, str(entry.path), entry.shapes) == ("b", "/a/b.onnx", {"x": [2]})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.toml", "[[model]]\npth = 'a'", "unknown key 'pth'.*nearest known: 'path'"),
        ("m.toml", "[[model]]\nname = 'a'", "missing key 'path'"),
        ("m.toml", "[[model]]\npath = 'a'\nshapes = {x = [0]}", "greater than 0"),
        ("m.json", "{", "not valid JSON"),
        ("m.json", "[]", "expected a table"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_model_file(path)


def test_a_missing_file_is_named(tmp_path):
    for name in ("m.toml", "m.json"):
        with pytest.raises(ConfigError, match=f"cannot read .*{name}"):
            read_model_file(tmp_path / name)


def test_shapes_go_to_the_models_that_have_the_input(tiny_model_path, abs_model_path, tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    shapes = {"x": (2, 3)}
    entries = entries_of([tiny_model_path, broken], shapes, [])
    assert [entry.shapes for entry in entries] == [shapes, shapes]
    with pytest.raises(InputError, match=r"'z', an input that no model has.*x"):
        entries_of([abs_model_path], {"z": (1,)}, [])
