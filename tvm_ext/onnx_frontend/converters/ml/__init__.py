"""Converters of ai.onnx.ml, whose operators TVM's importer does not have.

Strings and maps are the host's: ``host.operators.labels`` has what takes or gives them.
"""

from typing import Any

from tvm_ext.onnx_frontend.converters.ml.linear import LinearClassifier, LinearRegressor
from tvm_ext.onnx_frontend.converters.ml.preprocessing import (
    ArrayFeatureExtractor,
    Binarizer,
    FeatureVectorizer,
    Imputer,
    LabelEncoder,
    Normalizer,
    OneHotEncoder,
    Scaler,
)
from tvm_ext.onnx_frontend.converters.ml.svm import SVMClassifier, SVMRegressor
from tvm_ext.onnx_frontend.converters.ml.tree_ensemble import (
    TreeEnsemble,
    TreeEnsembleClassifier,
    TreeEnsembleRegressor,
)

_CONVERTERS = (
    ArrayFeatureExtractor,
    Binarizer,
    FeatureVectorizer,
    Imputer,
    LabelEncoder,
    LinearClassifier,
    LinearRegressor,
    Normalizer,
    OneHotEncoder,
    SVMClassifier,
    SVMRegressor,
    Scaler,
    TreeEnsemble,
    TreeEnsembleClassifier,
    TreeEnsembleRegressor,
)

ML_CONVERTERS: dict[str, Any] = {f"ai.onnx.ml::{one.__name__}": one for one in _CONVERTERS}
