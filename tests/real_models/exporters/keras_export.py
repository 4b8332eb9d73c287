"""Keras 3, on its backend of PyTorch."""

from catalogue.entry import DYNAMIC, ExportedEntry


def by_keras(case: ExportedEntry) -> None:
    """``Model.export(format="onnx")``; the static form gives every size in the signature."""
    import keras

    keras.utils.set_random_seed(0)
    model = case.entry.build()
    signature = [
        keras.InputSpec(
            shape=[
                (None if case.form == DYNAMIC else case.entry.sizes[0][size])
                if isinstance(size, str)
                else size
                for size in one.shape
            ],
            dtype=one.dtype,
            name=name,
        )
        for name, one in case.entry.inputs.items()
    ]
    model.export(
        case.folder / "model.onnx", format="onnx", input_signature=signature, verbose=False
    )
