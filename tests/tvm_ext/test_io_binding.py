"""Results written to the caller's arrays: directly, by copies where that cannot be, or refused."""

import re

import numpy as np
import pytest
import tvm
from onnx import TensorProto
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import InputError, TvmExtError

STORED = rand(7, seed=2)


class Exchanged:
    """An array that can be had by DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **given):
        return self.array.__dlpack__(**given)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


@pytest.fixture(scope="module")
def compiled() -> tvm_ext.CompiledModel:
    """Two computed outputs, an input, a weight, and one whose size the data decides."""
    nodes = [
        node("Relu", ["x"], ["y"]),
        node("Exp", ["y"], ["z"]),
        node("Identity", ["x"], ["input"]),
        node("Identity", ["stored"], ["weight"]),
        node("NonZero", ["x"], ["places"]),
    ]
    names = ("y", "z", "input", "weight")
    outputs = [value(name, None) for name in names] + [value("places", None, TensorProto.INT64)]
    return tvm_ext.compile(model(nodes, [value("x", ["n", 7])], outputs, stored=STORED), HOST)


@pytest.fixture
def x() -> np.ndarray:
    return rand(5, 7)


def expected(x: np.ndarray) -> dict[str, np.ndarray]:
    y = np.maximum(x, 0)
    parts = {"y": y, "z": np.exp(y), "input": x, "weight": STORED}
    return {**parts, "places": np.array(np.nonzero(x))}


def assert_expected(found: dict[str, np.ndarray], x: np.ndarray) -> None:
    assert found.keys() == expected(x).keys()
    for name, array in expected(x).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6)


def filled_later(x: np.ndarray) -> dict[str, np.ndarray]:
    """An array for each output, with other values than a run's."""
    return {name: np.full_like(array, 9) for name, array in expected(x).items()}


def test_computed_outputs_of_known_sizes_are_parameters(compiled) -> None:
    assert compiled.report.memory.out_params == ["y", "z"]


@pytest.mark.parametrize("chosen", [["y"], ["z", "input"], ["weight", "places", "y"], []])
def test_results_come_in_the_arrays_given(compiled, x, chosen: list[str]) -> None:
    out = {name: array for name, array in filled_later(x).items() if name in chosen}
    found = compiled.run({"x": x}, out=out)
    assert_expected(found, x)
    assert all(found[name] is out[name] for name in chosen)


def test_arrays_with_gaps_and_overlaps_are_copied_to(compiled, x) -> None:
    columns = np.zeros((5, 14), "float32")[:, ::2]
    assert_expected(compiled.run({"x": x}, out={"y": columns}), x)
    same = np.zeros((5, 7), "float32")
    found = compiled.run({"x": x}, out={"y": same, "z": same})
    np.testing.assert_allclose(found["z"], expected(x)["z"], rtol=1e-6)
    before = x.copy()
    found = compiled.run({"x": x}, out={"z": x})
    assert found["z"] is x
    np.testing.assert_allclose(x, expected(before)["z"], rtol=1e-6)


def test_tensors_of_other_libraries(compiled, x) -> None:
    kept = np.zeros_like(x)
    tensor = tvm.runtime.tensor(np.zeros_like(x))
    found = compiled.run({"x": Exchanged(x)}, out={"y": Exchanged(kept), "z": tensor})
    np.testing.assert_array_equal(kept, expected(x)["y"])
    np.testing.assert_allclose(tensor.numpy(), expected(x)["z"], rtol=1e-6)
    assert found["z"] is tensor


def read_only(shape: tuple[int, ...]) -> np.ndarray:
    array = np.zeros(shape, "float32")
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ({"why": np.zeros(3)}, "out names output 'why', which the model does not have"),
        ({"y": np.zeros((4, 7), "float32")}, "out['y'] is float32[4, 7], expected .* n = 5"),
        ({"y": np.zeros((5, 7))}, "out['y'] is float64[5, 7]"),
        ({"y": read_only((5, 7))}, "out['y'] is read-only"),
        ({"y": "text"}, "out['y'] is a str, expected memory of the host"),
        ({"places": np.zeros((2, 3), "int64")}, "this run's result is int64[2, 35]"),
        ([np.zeros((5, 7))], "out is a list"),
    ],
)
def test_what_does_not_fit_is_refused(compiled, x, out, words: str) -> None:
    words = words.replace("[", r"\[").replace("]", r"\]")
    with pytest.raises(InputError, match=words) as caught:
        compiled.run({"x": x}, out=out)
    assert "\n" not in str(caught.value)


def test_bound_arrays_are_read_and_written_in_each_run(compiled, x) -> None:
    out = filled_later(x)
    binding = compiled.io_binding({"x": x}, out)
    for number in range(3):
        x += number
        assert binding.run() is binding.out
        assert_expected(binding.out, x)
    assert all(binding.out[name] is out[name] for name in out)


def test_arrays_are_made_where_none_are_bound(compiled, x) -> None:
    binding = compiled.io_binding({"x": x}, {"places": np.zeros((2, 35), "int64")})
    binding.run()
    assert_expected(binding.out, x)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: {"inputs": {"x": x[:, ::-1]}}, "cannot be read in place"),
        (lambda x: {"inputs": {"x": x.tolist()}}, "input 'x' is float64"),
        (lambda x: {"inputs": {"x": x}}, "'places', .* has a size that only a run decides"),
    ],
)
def test_what_cannot_be_bound_is_refused(compiled, x, change, words: str) -> None:
    with pytest.raises(TvmExtError, match=words):
        compiled.io_binding(**change(x))


def test_saved_models_write_to_arrays_too(compiled, x, tmp_path) -> None:
    compiled.save(tmp_path / "m.tvmx")
    loaded = tvm_ext.load(tmp_path / "m.tvmx")
    out = {"y": np.zeros_like(x)}
    assert_expected(loaded.run({"x": x}, out=out, threads=1), x)
    assert loaded.report.memory.out_params == ["y", "z"]


@pytest.mark.parametrize("given", [{0: np.zeros((5, 7), "float32")}, {"x": 1, 3: 2}])
def test_keys_that_are_no_names(compiled, given) -> None:
    with pytest.raises(InputError, match="the model has no input"):
        compiled.run(given)


def test_masked_elements_have_no_value(compiled, x) -> None:
    masked = np.ma.masked_array(x, x > 0)
    with pytest.raises(InputError, match=re.escape("fill them with .filled(VALUE)")):
        compiled.run({"x": masked})
    assert_expected(compiled.run({"x": np.ma.masked_array(x)}), x)
