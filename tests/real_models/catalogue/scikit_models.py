"""scikit-learn: classifiers, regressors, transformers and pipelines, as skl2onnx writes them."""

from collections.abc import Callable, Mapping
from typing import Any

from .entry import Entry, Input, floats
from .tables import FEATURES, labelled, words

ROWS = ({"rows": 5}, {"rows": 1})
NUMBERS = {"X": floats("rows", FEATURES)}

# Module, class, parameters; classifiers give lists of dictionaries unless asked otherwise.
CLASSIFIERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "LogisticRegression": ("linear_model", {}),
    "SGDClassifier": ("linear_model", {"loss": "log_loss"}),
    "RidgeClassifier": ("linear_model", {}),
    "Perceptron": ("linear_model", {}),
    "LinearSVC": ("svm", {}),
    "SVC": ("svm", {"probability": True}),
    "NuSVC": ("svm", {"nu": 0.2}),
    "GaussianNB": ("naive_bayes", {}),
    "BernoulliNB": ("naive_bayes", {}),
    "KNeighborsClassifier": ("neighbors", {"n_neighbors": 3}),
    "RadiusNeighborsClassifier": ("neighbors", {"radius": 50.0}),
    "NearestCentroid": ("neighbors", {}),
    "DecisionTreeClassifier": ("tree", {"max_depth": 4}),
    "RandomForestClassifier": ("ensemble", {"n_estimators": 8, "max_depth": 4}),
    "ExtraTreesClassifier": ("ensemble", {"n_estimators": 8, "max_depth": 4}),
    "GradientBoostingClassifier": ("ensemble", {"n_estimators": 8}),
    "HistGradientBoostingClassifier": ("ensemble", {"max_iter": 8}),
    "AdaBoostClassifier": ("ensemble", {"n_estimators": 4}),
    "BaggingClassifier": ("ensemble", {"n_estimators": 4}),
    "MLPClassifier": ("neural_network", {"hidden_layer_sizes": (8,), "max_iter": 20}),
    "LinearDiscriminantAnalysis": ("discriminant_analysis", {}),
    "QuadraticDiscriminantAnalysis": ("discriminant_analysis", {"reg_param": 0.1}),
    "GaussianProcessClassifier": ("gaussian_process", {}),
    "OneVsRestClassifier": ("multiclass", {"estimator": "LogisticRegression"}),
    "CalibratedClassifierCV": ("calibration", {"estimator": "LogisticRegression"}),
}
REGRESSORS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "LinearRegression": ("linear_model", {}),
    "Ridge": ("linear_model", {}),
    "Lasso": ("linear_model", {}),
    "PoissonRegressor": ("linear_model", {}),
    "SVR": ("svm", {}),
    "NuSVR": ("svm", {}),
    "KNeighborsRegressor": ("neighbors", {"n_neighbors": 3}),
    "DecisionTreeRegressor": ("tree", {"max_depth": 4}),
    "RandomForestRegressor": ("ensemble", {"n_estimators": 8, "max_depth": 4}),
    "ExtraTreesRegressor": ("ensemble", {"n_estimators": 8, "max_depth": 4}),
    "GradientBoostingRegressor": ("ensemble", {"n_estimators": 8}),
    "HistGradientBoostingRegressor": ("ensemble", {"max_iter": 8}),
    "AdaBoostRegressor": ("ensemble", {"n_estimators": 4}),
    "BaggingRegressor": ("ensemble", {"n_estimators": 4}),
    "MLPRegressor": ("neural_network", {"hidden_layer_sizes": (8,), "max_iter": 20}),
    "GaussianProcessRegressor": ("gaussian_process", {}),
    "PLSRegression": ("cross_decomposition", {"n_components": 2}),
}
TRANSFORMERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "StandardScaler": ("preprocessing", {}),
    "MinMaxScaler": ("preprocessing", {}),
    "RobustScaler": ("preprocessing", {}),
    "Normalizer": ("preprocessing", {}),
    "Binarizer": ("preprocessing", {}),
    "KBinsDiscretizer": ("preprocessing", {"n_bins": 3, "encode": "onehot-dense"}),
    "PolynomialFeatures": ("preprocessing", {}),
    "PowerTransformer": ("preprocessing", {}),
    "SimpleImputer": ("impute", {}),
    "KNNImputer": ("impute", {"n_neighbors": 2}),
    "PCA": ("decomposition", {"n_components": 2}),
    "TruncatedSVD": ("decomposition", {"n_components": 2}),
    "KMeans": ("cluster", {"n_clusters": 3, "n_init": 2}),
    "GaussianMixture": ("mixture", {"n_components": 2}),
    "IsolationForest": ("ensemble", {"n_estimators": 5, "max_samples": 20}),
    "LocalOutlierFactor": ("neighbors", {"n_neighbors": 3, "novelty": True}),
    "OneClassSVM": ("svm", {}),
    "SelectKBest": ("feature_selection", {"k": 2}),
    "VarianceThreshold": ("feature_selection", {}),
}


def _create(module: str, name: str, options: Mapping[str, Any]) -> Any:
    import importlib

    options = dict(options)
    if "estimator" in options:
        options["estimator"] = _create("linear_model", options["estimator"], {})
    return getattr(importlib.import_module(f"sklearn.{module}"), name)(**options)


def _fitted(module: str, name: str, options: Mapping[str, Any], label: str) -> Callable[[], Any]:
    def build() -> Any:
        return _create(module, name, options).fit(*labelled(label))

    return build


def _entry(name: str, build: Callable[[], Any], inputs: Mapping[str, Input], **more: Any) -> Entry:
    return Entry(name, "scikit-learn", ("skl2onnx",), build, inputs, ROWS, options=more)


def _text_pipeline(vectoriser: str, **options: Any) -> Callable[[], Any]:
    def build() -> Any:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        texts, labels = words()
        vector = _create("feature_extraction.text", vectoriser, options)
        return make_pipeline(vector, LogisticRegression()).fit(texts, labels)

    return build


def _columns() -> Any:
    import pandas
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers, labels = labelled("words")
    table = pandas.DataFrame({"number": numbers[:, 0], "kind": labels})
    columns = ColumnTransformer(
        [
            ("number", StandardScaler(), ["number"]),
            ("kind", OneHotEncoder(handle_unknown="ignore"), ["kind"]),
        ]
    )
    return make_pipeline(columns, LogisticRegression()).fit(table, labels)


def _encoder(name: str) -> Callable[[], Any]:
    def build() -> Any:
        return _create("preprocessing", name, {}).fit(labelled("words")[1].reshape(-1, 1))

    return build


_KINDS = {"X": Input("str", ("rows", 1), words=("low", "middle", "high"))}
_TEXTS = {"X": Input("str", ("rows", 1), words=("a red fox", "the blue sea and sky", "no one"))}

ENTRIES = (
    *(
        _entry(name, _fitted(module, name, options, "words"), NUMBERS)
        for name, (module, options) in CLASSIFIERS.items()
    ),
    *(
        _entry(
            f"{name} (no ZipMap)",
            _fitted(*CLASSIFIERS[name][:1], name, CLASSIFIERS[name][1], "classes"),
            NUMBERS,
            options={"zipmap": False},
        )
        for name in ("LogisticRegression", "RandomForestClassifier", "MLPClassifier", "SVC")
    ),
    *(
        _entry(
            f"{name} (two classes)",
            _fitted(*CLASSIFIERS[name][:1], name, CLASSIFIERS[name][1], "binary"),
            NUMBERS,
        )
        for name in (
            "LogisticRegression",
            "RandomForestClassifier",
            "GradientBoostingClassifier",
            "SVC",
            "HistGradientBoostingClassifier",
        )
    ),
    *(
        _entry(name, _fitted(module, name, options, "numbers"), NUMBERS)
        for name, (module, options) in (REGRESSORS | TRANSFORMERS).items()
    ),
    _entry("OneHotEncoder", _encoder("OneHotEncoder"), _KINDS),
    _entry("OrdinalEncoder", _encoder("OrdinalEncoder"), _KINDS),
    _entry("ColumnTransformer", _columns, {"number": floats("rows", 1), "kind": _KINDS["X"]}),
    _entry("TfidfVectorizer", _text_pipeline("TfidfVectorizer"), _TEXTS),
    _entry("CountVectorizer", _text_pipeline("CountVectorizer", ngram_range=(1, 2)), _TEXTS),
)
