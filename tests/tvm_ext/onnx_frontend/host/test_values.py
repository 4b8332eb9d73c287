"""Strings, sequences and maps in files, on the command line and in a check."""

import json

import numpy as np
import onnx
import pytest
from commands import as_json, invoke, refused, succeed
from host_models import classifier

from tvm_ext.check.inputs import random_inputs, read_values, values_as_json
from tvm_ext.check.tolerance import plain_arrays
from tvm_ext.errors import InputError
from tvm_ext.tensor_spec import TensorSpec


@pytest.fixture
def path(tmp_path):
    onnx.save(classifier(["b", "a"]), tmp_path / "c.onnx")
    (tmp_path / "in.json").write_text('{"x": [[1, 2, 3], [-1, 0, 1]]}')
    return tmp_path / "c.onnx"


@pytest.mark.slow
def test_the_command_line_reads_and_writes_json(path, tmp_path):
    given = ["--inputs", str(tmp_path / "in.json"), "--opt-level", "O0"]
    out = tmp_path / "out.json"
    succeed("run", path, *given, "--outputs", out)
    written = json.loads(out.read_text())
    assert set(written["label"]) <= {"a", "b"}
    assert [list(row) for row in written["scores"]] == [["a", "b"], ["a", "b"]]
    message = refused("run", path, *given, "--outputs", tmp_path / "out.npz")
    assert "save to a .json file" in message


@pytest.mark.slow
def test_a_check_compares_strings_and_maps(path, tmp_path):
    given = ["--inputs", str(tmp_path / "in.json"), "--opt-level", "O0"]
    outputs = as_json("check", path, *given)["outputs"]
    assert [one["name"] for one in outputs] == ["label", "keys of scores", "scores"]
    other = onnx.load(path)
    other.graph.node[1].attribute[0].strings[0] = b"c"
    onnx.save(other, path)
    saved = tmp_path / "m.tvmx"
    succeed("compile", path, "-o", saved, "--opt-level", "O0")
    onnx.save(classifier(["b", "a"]), path)
    found = invoke("check", saved, "--against", path, *given[:2], "--json")
    assert found.exit_code == 1
    wrong = [one["name"] for one in json.loads(found.stdout)["outputs"] if not one["ok"]]
    assert "keys of scores" in wrong


def test_values_of_each_kind_as_json(tmp_path):
    specs = [
        TensorSpec("s", "str", (2,)),
        TensorSpec("q", "seq(tensor(float))", ()),
        TensorSpec("m", "map(int64,tensor(float))", ()),
        TensorSpec("o", "optional(seq(tensor(int64)))", ()),
    ]
    text = '{"s": ["a", "ü"], "q": [[1, 2], [[3]]], "m": {"7": 1}, "o": null}'
    (tmp_path / "in.json").write_text(text, encoding="utf-8")
    found = read_values(tmp_path / "in.json", specs)
    assert found["s"].tolist() == ["a", "ü"]
    assert [(one.dtype, one.shape) for one in found["q"]] == [
        (np.float32, (2,)), (np.float32, (1, 1))
    ]  # fmt: skip
    assert found["m"] == {7: 1.0}
    assert found["o"] is None
    assert json.loads(values_as_json(found)) == json.loads(text)
    (tmp_path / "in.json").write_text('{"q": 3}')
    with pytest.raises(InputError, match=r"input 'q' cannot be read .*expected q: seq"):
        read_values(tmp_path / "in.json", specs)


def test_plain_arrays_show_every_difference():
    one = plain_arrays({"q": [np.zeros(1), np.zeros(2)], "o": None, "m": [{"b": 1.0, "a": 2.0}]})
    assert list(one) == ["length of q", "q[0]", "q[1]", "o", "keys of m", "m"]
    assert one["m"].tolist() == [2, 1]
    assert one["m"].dtype == np.float32
    assert one["keys of m"].tolist() == ["a", "b"]


def test_random_strings():
    found = random_inputs([TensorSpec("s", "str", (2, "N"))], sizes={"N": 3})["s"]
    assert found.shape == (2, 3)
    assert all(isinstance(text, str) for text in found.flat)
