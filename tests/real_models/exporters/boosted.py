"""onnxmltools: boosted trees of XGBoost and LightGBM."""

from catalogue.entry import ExportedEntry

from .scikit_learn import initial_types


def by_onnxmltools(case: ExportedEntry) -> None:
    """``convert_xgboost`` or ``convert_lightgbm``, whichever library the fitted model is from."""
    import onnxmltools
    from onnxmltools.convert.common import data_types

    model = case.entry.build()
    library = type(model).__module__.split(".")[0]
    convert = {
        "xgboost": onnxmltools.convert_xgboost,
        "lightgbm": onnxmltools.convert_lightgbm,
    }[library]
    types = [
        (name, getattr(data_types, type(kind).__name__)(kind.shape))
        for name, kind in initial_types(case)
    ]
    proto = convert(model, initial_types=types, **case.entry.options)
    (case.folder / "model.onnx").write_bytes(proto.SerializeToString())
