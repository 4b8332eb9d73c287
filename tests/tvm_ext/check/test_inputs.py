"""Random inputs, and inputs read from files."""

import os

import ml_dtypes
import numpy as np
import pytest

from tvm_ext.check.inputs import load_inputs, random_inputs, write_inputs, write_npz
from tvm_ext.errors import InputError, OutputPathError
from tvm_ext.model_inputs import check_inputs
from tvm_ext.tensor_spec import TensorSpec

SPECS = [
    TensorSpec("image", "float32", ("N", 3, "H", 5)),
    TensorSpec("half", "float16", (2, "H")),
    TensorSpec("brain", "bfloat16", (7,)),
    TensorSpec("wide", "float64", ()),
    TensorSpec("ids", "int64", ("N", 200)),
    TensorSpec("bytes", "uint8", (200,)),
    TensorSpec("flags", "bool", (200,)),
]


def test_random_inputs_fit_the_model_and_come_back_for_the_same_seed():
    arrays = random_inputs(SPECS, seed=5)
    check_inputs(SPECS, arrays)
    assert arrays["image"].shape == (1, 3, 64, 5)
    assert arrays["half"].shape == (2, 64)
    assert arrays["brain"].dtype == ml_dtypes.bfloat16
    again, other = random_inputs(SPECS, seed=5), random_inputs(SPECS, seed=6)
    for spec in SPECS:
        np.testing.assert_array_equal(arrays[spec.name], again[spec.name])
        assert not np.array_equal(arrays[spec.name], other[spec.name])


def test_random_integers_are_safe_as_indices_and_bytes_are_not_only_zero_and_one():
    arrays = random_inputs(SPECS)
    assert set(np.unique(arrays["ids"])) == {0, 1}
    assert set(np.unique(arrays["flags"])) == {False, True}
    assert arrays["bytes"].max() > 200
    assert abs(float(arrays["image"].std()) - 1) < 0.2


def test_sizes_of_symbolic_dimensions():
    arrays = random_inputs(SPECS, sizes={"N": 2, "H": 3})
    assert arrays["image"].shape == (2, 3, 3, 5)
    assert arrays["ids"].shape == (2, 200)
    with pytest.raises(InputError, match="no input has a dimension 'M'"):
        random_inputs(SPECS, sizes={"M": 2})
    with pytest.raises(InputError, match="expected at least 1"):
        random_inputs(SPECS, sizes={"N": 0})


def test_a_dtype_without_random_values_is_refused():
    with pytest.raises(InputError, match="random values cannot be made for s: seq"):
        random_inputs([TensorSpec("s", "seq(tensor(float))", ())])
    with pytest.raises(InputError, match="random values cannot be made"):
        random_inputs([TensorSpec("s", "no_such_type", ())])


def test_inputs_come_from_an_archive_a_folder_or_one_array(tmp_path):
    arrays = {"a": np.arange(3), "b/c:0": np.ones((2, 2), np.float32)}
    np.savez(tmp_path / "all.npz", **arrays)
    loaded = load_inputs(tmp_path / "all.npz")
    assert loaded.keys() == arrays.keys()
    np.testing.assert_array_equal(loaded["b/c:0"], arrays["b/c:0"])
    folder = tmp_path / "folder"
    folder.mkdir()
    np.save(folder / "a.npy", arrays["a"])
    assert list(load_inputs(str(folder))) == ["a"]
    assert list(load_inputs(folder / "a.npy")) == ["a"]
    assert list(load_inputs(folder / "a.npy", [TensorSpec("x", "int64", (3,))])) == ["x"]


def test_unreadable_inputs_are_refused_with_what_to_do(tmp_path):
    np.save(tmp_path / "one.npy", np.zeros(1))
    with pytest.raises(InputError, match=r"the model has 7 inputs .*numpy.savez"):
        load_inputs(tmp_path / "one.npy", SPECS)
    for name, content, message in (
        ("bad.npz", b"no archive", "cannot be read"),
        ("cut.npz", b"PK\x03\x04", "cannot be read"),
        ("bad.npy", b"", "cannot be read"),
        ("inputs.csv", b"1,2", r"ends in '\.csv'"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message) as caught:
            load_inputs(tmp_path / name)
        assert "\n" not in str(caught.value)
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(InputError, match="cannot be read"):
        load_inputs(tmp_path / "objects.npy")
    np.savez(tmp_path / "objects.npz", a=np.array([{}]))
    with pytest.raises(InputError, match="cannot be read"):
        load_inputs(tmp_path / "objects.npz")
    np.savez(tmp_path / "empty.npz")
    with pytest.raises(InputError, match="holds no arrays"):
        load_inputs(tmp_path / "empty.npz")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"holds no \.npy"):
        load_inputs(tmp_path / "folder")
    with pytest.raises(InputError, match="no such file"):
        load_inputs(tmp_path / "absent.npz")


def test_npz_takes_any_name_and_type(tmp_path):
    arrays = {
        "file": np.arange(3),
        "/a/b:0": np.array(True),
        "ü": np.ones(2, ml_dtypes.bfloat16),
    }
    write_npz(tmp_path / "out.npz", arrays)
    with np.load(tmp_path / "out.npz") as archive:
        assert set(archive.files) == set(arrays)
        np.testing.assert_array_equal(archive["file"], [0, 1, 2])
        assert archive["/a/b:0"].dtype == np.bool_
        assert archive["ü"].dtype == np.float32
    assert os.listdir(tmp_path) == ["out.npz"]


def test_npz_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    def fail(*paths):
        raise OSError(28, "No space left on device")

    (tmp_path / "out.npz").write_bytes(b"old")
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OutputPathError, match="No space left"):
        write_npz(tmp_path / "out.npz", {"y": np.zeros(2)})
    assert (tmp_path / "out.npz").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out.npz"]


def test_written_inputs_are_read_as_they_were(tmp_path):
    plain = {"a/b": np.float32([[1, np.nan]]), "t": np.array(["x", "yz"], object)}
    path = write_inputs(tmp_path / "m.onnx", plain)
    assert path == tmp_path / "m.npz"
    found = load_inputs(path)
    np.testing.assert_array_equal(found["a/b"], plain["a/b"])
    assert list(found["t"]) == ["x", "yz"]
    half = np.array([1.5, -np.inf], ml_dtypes.bfloat16)
    specs = [TensorSpec("h", "bfloat16", (2,)), TensorSpec("q", "seq(tensor(float))", ())]
    path = write_inputs(tmp_path / "m.onnx", {"h": half, "q": [np.float32([3])]})
    assert path == tmp_path / "m.json"
    found = load_inputs(path, specs)
    assert found["h"].dtype == half.dtype
    np.testing.assert_array_equal(found["h"], half)
    np.testing.assert_array_equal(found["q"], [np.float32([3])])
    assert write_inputs(tmp_path / "none.onnx", {}) is None
