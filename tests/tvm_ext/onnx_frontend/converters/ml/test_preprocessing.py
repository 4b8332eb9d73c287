"""Scalers and encoders of ai.onnx.ml against ONNX Runtime."""

import numpy as np
import onnx
import pytest
from ml_models import check, ml_model, refused
from one_model import in_one_model, run_model
from onnx import TensorProto

NAN = float("nan")


@in_one_model
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm: str) -> None:
    x = np.array([[1, 2, 2], [0, 0, 0], [-3, 4, 0], [1, -5, 2], [-2, -4, -8]], np.float32)
    check(ml_model("Normalizer", [x], [TensorProto.FLOAT], norm=norm), x)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(
    ("operator", "attributes", "x"),
    [
        ("Scaler", {"offset": [1.0, 2.0], "scale": [0.5, 3.0]}, np.float32([[1, 2], [3, 4]])),
        ("Scaler", {"offset": [1.0], "scale": [0.5]}, np.int64([[1, 2], [3, 4]])),
        ("Imputer", {"imputed_value_floats": [1.0, 2.0], "replaced_value_float": NAN},
         np.float32([[NAN, 5], [6, NAN]])),
        ("Imputer", {"imputed_value_int64s": [9], "replaced_value_int64": 3},
         np.int64([[3, 5], [6, 3]])),
        ("Binarizer", {"threshold": 1.5}, np.float32([[1, 2], [1.5, -4]])),
        ("OneHotEncoder", {"cats_int64s": [4, 1, 7]}, np.int64([7, 2, 4])),
        ("LabelEncoder", {"keys_int64s": [1, 5], "values_floats": [0.5, 2.0]}, np.int64([5, 2])),
        ("LabelEncoder", {"keys_floats": [1.0, NAN], "values_int64s": [3, 4],
                          "default_int64": -7}, np.float32([NAN, 1, 2])),
    ],
)  # fmt: skip
def test_scalers_and_encoders(operator: str, attributes: dict, x: np.ndarray) -> None:
    output = TensorProto.FLOAT
    if "int64s" in "".join(attributes) and operator in ("Imputer", "LabelEncoder"):
        output = TensorProto.INT64
    if operator == "LabelEncoder" and "values_floats" in attributes:
        output = TensorProto.FLOAT
    check(
        ml_model(operator, [x], [output], 4 if "keys_floats" in attributes else 2, **attributes), x
    )


@pytest.mark.extended
def test_the_first_of_equal_keys_counts() -> None:
    x = np.array([4, 5])
    proto = ml_model("LabelEncoder", [x], [TensorProto.INT64], 2, keys_int64s=[4, 4, 5],
                     values_int64s=[1, 2, 3])  # fmt: skip
    check(proto, x)


@pytest.mark.extended
def test_feature_vectorizer_and_extractor() -> None:
    a, b = np.float32([[1, 2], [3, 4]]), np.float32([[5, 6, 7], [8, 9, 0]])
    proto = ml_model("FeatureVectorizer", [a, b], [TensorProto.FLOAT], inputdimensions=[2, 3])
    check(proto, a, b)
    places = np.array([[2, 0]])
    check(ml_model("ArrayFeatureExtractor", [b, places], [TensorProto.FLOAT]), b, places)


@pytest.mark.parametrize(
    ("operator", "attributes", "line"),
    [
        ("LabelEncoder", {"keys_int64s": [1, 2], "values_int64s": [4]}, "2 keys and 1 values"),
        ("Scaler", {"offset": [1.0, 2.0, 3.0]}, "offset has 3 values, and its input has 2 columns"),
        ("Normalizer", {"norm": "L3"}, "norm 'L3' is unknown"),
    ],
)
def test_scalers_and_encoders_that_are_refused(operator: str, attributes: dict, line: str) -> None:
    x = np.zeros((2, 2), np.int64)
    output = TensorProto.INT64 if "values_int64s" in attributes else TensorProto.FLOAT
    proto = ml_model(operator, [x], [output], 2, **attributes)
    refused(proto, line)


def test_an_empty_list_is_as_good_as_none() -> None:
    x = np.float32([[1, 2], [3, 4]])
    proto = ml_model("Scaler", [x], [TensorProto.FLOAT], offset=[1.0, 2.0])
    empty = proto.graph.node[0].attribute.add()
    empty.name, empty.type = "scale", onnx.AttributeProto.FLOATS
    found = run_model(proto, {"x0": x})["y0"]
    np.testing.assert_array_equal(found, [[0, 0], [2, 2]])
