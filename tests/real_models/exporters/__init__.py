"""Who writes ONNX files: each exporter takes a case and fills its folder."""

from collections.abc import Callable

from catalogue.entry import ExportedEntry

from . import boosted, keras_export, optimum_export, scikit_learn, torch_export

EXPORTERS: dict[str, Callable[[ExportedEntry], None]] = {
    "torchscript": torch_export.by_torchscript,
    "dynamo": torch_export.by_dynamo,
    "optimum": optimum_export.by_optimum,
    "skl2onnx": scikit_learn.by_skl2onnx,
    "onnxmltools": boosted.by_onnxmltools,
    "keras": keras_export.by_keras,
}
