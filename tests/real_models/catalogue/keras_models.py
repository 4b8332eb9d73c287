"""Keras 3: its image classifiers, and small networks of its layers."""

from collections.abc import Callable, Mapping
from typing import Any

from .entry import Entry, Input, floats, integers

_IMAGES = {"images": floats("batch", 64, 64, 3)}
_STEPS = {"steps": floats("batch", "length", 8)}

# Function in keras.applications, and what makes the model smaller.
APPLICATIONS: Mapping[str, Mapping[str, Any]] = {
    "MobileNet": {"alpha": 0.25},
    "MobileNetV2": {"alpha": 0.35},
    "MobileNetV3Small": {"alpha": 0.75, "minimalistic": True},
    "EfficientNetB0": {},
    "DenseNet121": {},
}


def _application(name: str, options: Mapping[str, Any]) -> Callable[[], Any]:
    def build() -> Any:
        import keras

        create = getattr(keras.applications, name)
        return create(weights=None, input_shape=(64, 64, 3), classes=10, **options)

    return build


def _recurrent(layer: str) -> Callable[[], Any]:
    def build() -> Any:
        import keras

        layers = keras.layers
        recurrent = getattr(layers, layer)(12, return_sequences=True)
        return keras.Sequential(
            [
                keras.Input((None, 8), name="steps"),
                layers.Bidirectional(recurrent),
                layers.Dense(4, activation="softmax"),
            ]
        )

    return build


def _text_cnn() -> Any:
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((20,), dtype="int64", name="tokens"),
            layers.Embedding(50, 16),
            layers.Conv1D(12, 3, activation="relu"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(4),
        ]
    )


def _attention() -> Any:
    import keras

    layers = keras.layers
    steps = keras.Input((10, 8), name="steps")
    attended = layers.MultiHeadAttention(2, 8)(steps, steps)
    hidden = layers.LayerNormalization()(steps + attended)
    return keras.Model(steps, layers.Dense(4, activation="gelu")(hidden))


def _entry(name: str, build: Callable[[], Any], inputs: Mapping[str, Input]) -> Entry:
    sizes = ({"batch": 2, "length": 10}, {"batch": 1, "length": 14})
    if "length" not in next(iter(inputs.values())).shape:
        sizes = ({"batch": 2}, {"batch": 1})
    return Entry(f"Keras {name}", "Keras", ("keras",), build, inputs, sizes)


ENTRIES = (
    *(_entry(name, _application(name, options), _IMAGES) for name, options in APPLICATIONS.items()),
    _entry("LSTM", _recurrent("LSTM"), _STEPS),
    _entry("GRU", _recurrent("GRU"), _STEPS),
    _entry("text CNN", _text_cnn, {"tokens": integers("batch", 20, high=50)}),
    _entry("attention", _attention, {"steps": floats("batch", 10, 8)}),
)
