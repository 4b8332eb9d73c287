"""LSTM, GRU and RNN against ONNX Runtime."""

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from combinations import pairwise
from hypothesis import given, settings
from hypothesis import strategies as st
from one_model import in_one_model, run_model
from onnx import helper
from opt_levels import levels_of
from small_models import model, rand, value
from thoroughness import DRAWS, one_in
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import DefectWarning, ModelError, RunError

runtime = pytest.importorskip("onnxruntime")

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
Arrays = dict[str, np.ndarray]


def arrays_of(
    op: str, steps: int, batch: int, hidden: int, directions: int, optional: str, lengths: Any
) -> Arrays:
    """All inputs of a layer of three inputs in layout 0; ``optional`` has a letter for each.

    That is "b" for the bias, "h" and "c" for initial states, "p" for peepholes.
    """
    width = GATES[op] * hidden
    shapes = {
        "X": (steps, batch, 3),
        "W": (directions, width, 3),
        "R": (directions, width, hidden),
        "B": (directions, 2 * width),
        "initial_h": (directions, batch, hidden),
        "initial_c": (directions, batch, hidden),
        "P": (directions, 3 * hidden),
    }
    letters = {"B": "b", "initial_h": "h", "initial_c": "c", "P": "p"}
    arrays = {
        name: rand(*shape, seed=index) * 0.8
        for index, (name, shape) in enumerate(shapes.items())
        if name not in letters or letters[name] in optional
    }
    # With larger ones, what rounding leaves would grow from step to step.
    arrays["R"] /= np.float32(max(1.0, hidden**0.5 / 2))
    if lengths is not None:
        arrays["sequence_lens"] = np.array(lengths, np.int32)
    return arrays


def layer(
    op: str,
    arrays: Arrays,
    stored: str = "WRBP",
    outputs: str = "yhc",
    symbolic_sizes: bool = False,
    **attributes: Any,
) -> tuple[onnx.ModelProto, Arrays]:
    """The node alone, and what to feed; inputs whose first letter is in ``stored`` are weights.

    With ``symbolic_sizes`` the model leaves the numbers of steps and sequences dynamic.
    """
    attributes["hidden_size"] = arrays["W"].shape[1] // GATES[op]
    weights = {name: array for name, array in arrays.items() if name[0] in stored}
    fed = {name: array for name, array in arrays.items() if name not in weights}
    names = [name if name in arrays else "" for name in INPUTS]
    while not names[-1]:
        names.pop()
    found = {"y": "Y", "h": "Y_h", "c": "Y_c"}
    wanted = [found[k] if k in outputs else "" for k in ("yhc" if op == "LSTM" else "yh")]

    symbols: dict[str, dict[int, str]] = {
        "X": {0: "steps", 1: "batch"},
        "sequence_lens": {0: "batch"},
    }
    inputs = []
    for name, array in fed.items():
        named = symbols.get(name, {1: "batch"}) if symbolic_sizes else {}
        shape = [named.get(axis, size) for axis, size in enumerate(array.shape)]
        inputs.append(value(name, shape, helper.np_dtype_to_tensor_dtype(array.dtype)))
    element = helper.np_dtype_to_tensor_dtype(arrays["X"].dtype)
    proto = model(
        [helper.make_node(op, names, wanted, name="layer", **attributes)],
        inputs,
        [value(name, None, element) for name in wanted if name],
        **weights,
    )
    return proto, fed


def reference(proto: onnx.ModelProto, fed: Arrays) -> list[np.ndarray]:
    providers = ["CPUExecutionProvider"]
    return runtime.InferenceSession(proto.SerializeToString(), providers=providers).run(None, fed)


def assert_as_reference(proto: onnx.ModelProto, fed: Arrays, levels: Any = ("O0", "O3")) -> None:
    """O0 runs the kernel as the importer writes it, O3 as the template does."""
    wanted = reference(proto, fed)
    for level in levels:
        found = run_model(proto, fed, level)
        assert len(found) == len(wanted)
        for (name, array), expected in zip(found.items(), wanted, strict=True):
            assert (array.dtype, array.shape) == (expected.dtype, expected.shape), name
            np.testing.assert_allclose(array, expected, rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.extended
@settings(max_examples=3 * DRAWS, deadline=None, derandomize=True)
@given(
    op=st.sampled_from(["LSTM", "GRU", "RNN"]),
    direction=st.sampled_from(["forward", "reverse", "bidirectional"]),
    optional=st.sets(st.sampled_from("bhcp")),
    steps=st.integers(1, 5),
    batch=st.integers(1, 9),
    hidden=st.sampled_from([1, 5, 16, 20, 33, 64]),
    lengths=st.booleans(),
    clip=st.sampled_from([None, 0.4]),
    flag=st.booleans(),
    symbolic_sizes=st.booleans(),
)
def test_any_form(
    op: str,
    direction: str,
    optional: set,
    steps: int,
    batch: int,
    hidden: int,
    lengths: bool,
    clip: float | None,
    flag: bool,
    symbolic_sizes: bool,
) -> None:
    if op != "LSTM":
        optional -= {"c", "p"}
    attributes: dict[str, Any] = {"direction": direction, "symbolic_sizes": symbolic_sizes}
    if clip is not None:
        attributes["clip"] = clip
    if op != "RNN":
        attributes["linear_before_reset" if op == "GRU" else "input_forget"] = int(flag)
    own = [1 + (3 * row) % steps for row in range(batch)] if lengths else None
    directions = 2 if direction == "bidirectional" else 1
    arrays = arrays_of(op, steps, batch, hidden, directions, "".join(sorted(optional)), own)
    assert_as_reference(*layer(op, arrays, **attributes), levels=("O3",))


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("op", GATES)
def test_as_imported_and_as_scheduled(op: str) -> None:
    optional = "bhcp" if op == "LSTM" else "bh"
    arrays = arrays_of(op, 4, 3, 20, 2, optional, [4, 1, 2])
    assert_as_reference(*layer(op, arrays, direction="bidirectional"))


@pytest.mark.extended
def test_the_state_of_a_cell_is_not_clipped() -> None:
    arrays = arrays_of("LSTM", 6, 1, 16, 1, "bc", None)
    arrays["initial_c"] *= 10
    assert_as_reference(*layer("LSTM", arrays, clip=0.3))


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("op", GATES)
def test_weights_that_the_model_computes(op: str) -> None:
    arrays = arrays_of(op, 3, 2, 20, 1, "bp" if op == "LSTM" else "b", None)
    proto, fed = layer(op, arrays, stored="")
    assert_as_reference(proto, fed, levels_of(proto))


ACTIVATIONS = [
    ("Relu", [], []),
    ("Tanh", [], []),
    ("Sigmoid", [], []),
    ("Affine", [0.5], [0.1]),
    ("LeakyRelu", [], []),
    ("LeakyRelu", [0.3], []),
    ("ThresholdedRelu", [0.2], []),
    ("ScaledTanh", [0.7], [1.3]),
    ("HardSigmoid", [], []),
    ("HardSigmoid", [0.4], [0.3]),
    ("Elu", [], []),
    ("Elu", [0.6], []),
    ("Softsign", [], []),
    ("Softplus", [], []),
]


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(("name", "alpha", "beta"), ACTIVATIONS)
def test_activations(name: str, alpha: list, beta: list) -> None:
    parameters = {"activation_alpha": alpha, "activation_beta": beta}
    given_ones = {key: numbers for key, numbers in parameters.items() if numbers}
    arrays = arrays_of("RNN", 4, 2, 5, 1, "b", None)
    assert_as_reference(*layer("RNN", arrays, activations=[name], **given_ones), levels=("O3",))


@pytest.mark.extended
def test_each_direction_has_its_functions_and_takes_parameters_in_order() -> None:
    arrays = arrays_of("LSTM", 4, 2, 20, 2, "bhcp", None)
    attributes = {
        "activations": ["HardSigmoid", "Softsign", "Affine", "Sigmoid", "Elu", "Relu"],
        "activation_alpha": [0.3, 0.8, 0.5],
        "activation_beta": [0.4, 0.1],
    }
    assert_as_reference(*layer("LSTM", arrays, direction="bidirectional", **attributes))


@pytest.mark.extended
@in_one_model
@pairwise(op=GATES, direction=["bidirectional", "reverse"])
def test_batch_first(op: str, direction: str) -> None:
    """ONNX Runtime does not have layout 1: the same arrays turned, in layout 0."""
    optional = "bhc" if op == "LSTM" else "bh"
    directions = 2 if direction == "bidirectional" else 1
    arrays = arrays_of(op, 5, 3, 20, directions, optional, [2, 5, 3])
    wanted = reference(*layer(op, arrays, direction=direction))
    for name in ("X", "initial_h", "initial_c"):
        if name in arrays:
            arrays[name] = np.ascontiguousarray(np.swapaxes(arrays[name], 0, 1))
    proto, fed = layer(op, arrays, direction=direction, layout=1)
    for level in levels_of(proto):
        y, *states = run_model(proto, fed, level).values()
        np.testing.assert_allclose(y, np.moveaxis(wanted[0], 2, 0), rtol=1e-5, atol=2e-6)
        for found, expected in zip(states, wanted[1:], strict=True):
            turned = np.swapaxes(expected, 0, 1)
            np.testing.assert_allclose(found, turned, rtol=1e-5, atol=2e-6)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("outputs", ["y", "h", "c", "yc"])
def test_outputs_that_nobody_wants(outputs: str) -> None:
    arrays = arrays_of("LSTM", 3, 2, 16, 1, "b", None)
    proto, fed = layer("LSTM", arrays, outputs=outputs)
    assert_as_reference(proto, fed, levels=("O3",))


@pytest.mark.extended
def test_a_sequence_without_a_step_ends_in_zeros() -> None:
    arrays = arrays_of("LSTM", 3, 2, 16, 2, "bhc", [0, 3])
    assert_as_reference(*layer("LSTM", arrays, direction="bidirectional"))


@pytest.mark.extended
def test_lengths_beyond_the_input_read_nothing_there() -> None:
    arrays = arrays_of("GRU", 4, 2, 16, 2, "b", [400_000_000, -5])
    proto, fed = layer("GRU", arrays, direction="bidirectional")
    y, _ = run_model(proto, fed).values()
    fed["sequence_lens"] = np.array([4, 0], np.int32)
    np.testing.assert_allclose(y, reference(proto, fed)[0], rtol=1e-5, atol=2e-6)


@pytest.mark.slow
def test_compiled_once_for_all_sizes() -> None:
    arrays = arrays_of("LSTM", 4, 2, 20, 2, "bhc", None)
    proto, _ = layer("LSTM", arrays, direction="bidirectional", symbolic_sizes=True)
    compiled = tvm_ext.compile(proto, HOST)
    for steps, batch in ((1, 1), (7, 1), (2, 11), (3, 6)):
        sized = arrays_of("LSTM", steps, batch, 20, 2, "bhc", None)
        fed = {name: sized[name] for name in ("X", "initial_h", "initial_c")}
        for found, wanted in zip(compiled.run(fed).values(), reference(proto, fed), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6)


@pytest.mark.extended
def test_a_state_of_another_batch_is_refused_in_the_run() -> None:
    arrays = arrays_of("GRU", 4, 2, 16, 1, "bh", None)
    proto, fed = layer("GRU", arrays, symbolic_sizes=True)
    proto.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "other"
    compiled = tvm_ext.compile(proto, HOST)
    compiled.run(fed)
    with pytest.raises(RunError):
        compiled.run({**fed, "initial_h": fed["initial_h"][:, :1]})


@pytest.mark.extended
@in_one_model
@pairwise(op=GATES, typed=[("float64", 2e-6), ("float16", 5e-3)])
def test_other_types(op: str, typed: tuple[str, float]) -> None:
    """Which ONNX Runtime has float32 for only."""
    dtype, tolerance = typed
    arrays = arrays_of(op, 3, 2, 20, 1, "bh", None)
    wanted = reference(*layer(op, arrays))
    proto, fed = layer(op, {name: array.astype(dtype) for name, array in arrays.items()})
    found = run_model(proto, fed)
    for array, expected in zip(found.values(), wanted, strict=True):
        assert array.dtype == dtype
        np.testing.assert_allclose(array, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"activations": ["Swish"]}, "'swish' is none of ONNX's"),
        ({"activations": ["Tanh", "Tanh"]}, "2 activations, not 1"),
        ({"activations": ["Affine"]}, "'affine' has no activation_alpha"),
        ({"activation_alpha": [0.5]}, "more activation_alpha"),
        ({"direction": "sideways"}, "direction is 'sideways'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals_name_node_and_form(attributes: dict, reason: str) -> None:
    proto, _ = layer("RNN", arrays_of("RNN", 2, 1, 4, 1, "b", None), **attributes)
    with pytest.raises(ModelError, match=reason) as caught:
        tvm_ext.compile(proto)
    assert "RNN node 'layer'" in str(caught.value)


def test_weights_that_do_not_fit_are_refused() -> None:
    arrays = arrays_of("GRU", 2, 1, 4, 1, "b", None)
    arrays["R"] = arrays["R"][:, :, :3]
    with pytest.raises(ModelError, match="hidden_size is 4, but R has 3 columns"):
        tvm_ext.compile(layer("GRU", arrays)[0])


@pytest.mark.extended
@pytest.mark.parametrize("op", one_in(3, GATES))
def test_units_of_a_step_are_shared_by_threads(op: str) -> None:
    """The layer is large enough for it, and the batch open: one sequence, and rests of a group."""
    proto, _ = layer(op, arrays_of(op, 2, 1, 320, 1, "bh", None), symbolic_sizes=True)
    compiled = tvm_ext.compile(proto, threads=2)
    for steps, batch in ((3, 1), (2, 3), (2, 8)):
        sized = arrays_of(op, steps, batch, 320, 1, "bh", None)
        fed = {name: sized[name] for name in ("X", "initial_h")}
        found = compiled.run(fed)
        wanted = runtime.InferenceSession(proto.SerializeToString()).run(None, fed)
        for name, array in zip(found, wanted, strict=True):
            np.testing.assert_allclose(found[name], array, atol=1e-5)


@pytest.mark.extended
def test_directions_and_groups_of_sequences_are_shared_by_threads() -> None:
    """Of an open batch: a group of four, what is left of one, groups of several parts."""
    proto, _ = layer(
        "LSTM",
        arrays_of("LSTM", 2, 1, 100, 2, "bh", None),
        direction="bidirectional",
        symbolic_sizes=True,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", DefectWarning)
        compiled = tvm_ext.compile(proto, HOST, threads=2)
    session = runtime.InferenceSession(proto.SerializeToString())
    for steps, batch in ((3, 4), (2, 3), (2, 45)):
        sized = arrays_of("LSTM", steps, batch, 100, 2, "bh", None)
        fed = {name: sized[name] for name in ("X", "initial_h")}
        found = compiled.run(fed)
        for name, array in zip(found, session.run(None, fed), strict=True):
            np.testing.assert_allclose(found[name], array, atol=1e-5)
