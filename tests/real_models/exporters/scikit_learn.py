"""skl2onnx: pipelines and estimators of scikit-learn."""

from typing import Any

from catalogue.entry import DYNAMIC, ExportedEntry, Input


def by_skl2onnx(case: ExportedEntry) -> None:
    """``skl2onnx.to_onnx`` of a fitted estimator; its ``options`` are passed on."""
    from skl2onnx import get_latest_tested_opset_version, to_onnx

    estimator = case.entry.build()
    options = case.entry.options.get("options")
    proto = to_onnx(
        estimator,
        initial_types=initial_types(case),
        options={id(estimator): options} if options else None,
        # Some converters refuse the version of ai.onnx.ml that is the default.
        target_opset={
            "": case.entry.options.get("opset") or get_latest_tested_opset_version(),
            "ai.onnx.ml": case.entry.options.get("ml_opset", 3),
        },
    )
    (case.folder / "model.onnx").write_bytes(proto.SerializeToString())


def initial_types(case: ExportedEntry) -> list[tuple[str, Any]]:
    """Names and types of the inputs; without names of dimensions in the static form."""
    from skl2onnx.common import data_types

    kinds = {
        "float32": data_types.FloatTensorType,
        "int64": data_types.Int64TensorType,
        "str": data_types.StringTensorType,
    }
    return [(name, kinds[one.dtype](_shape(one, case))) for name, one in case.entry.inputs.items()]


def _shape(one: Input, case: ExportedEntry) -> list[Any]:
    if case.form == DYNAMIC:
        return [None if isinstance(size, str) else size for size in one.shape]
    return [case.entry.sizes[0].get(size, size) for size in one.shape]  # type: ignore[call-overload]
