"""Trains a small ONNX classifier on handwritten digits, and shows its accuracy rise.

The network is written here, with random weights. The digits are those of scikit-learn, 1,797
images of 8 by 8. Behind each epoch the trained weights go back into the ONNX file, which is then
compiled as any other model and asked for digits that it was not trained on.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import tvm_ext
from tvm_ext.training import AdamW

BATCH, EPOCHS, TEST_DIGITS = 64, 8, 297
# What a guess comes to, and what the trained network has to reach.
GUESS, WANTED = 0.1, 0.95

NETWORK = """
<ir_version: 9, opset_import: ["" : 20]>
digits (float[N, 1, 8, 8] image) => (float[N, 10] logits)
{
    c1 = Conv <pads = [1, 1, 1, 1]> (image, conv1.weight, conv1.bias)
    r1 = Relu (c1)
    c2 = Conv <pads = [1, 1, 1, 1]> (r1, conv2.weight, conv2.bias)
    r2 = Relu (c2)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r2)
    f = Flatten (p)
    d = Dropout (f)
    logits = Gemm <transB = 1> (d, head.weight, head.bias)
}
"""
SHAPES = {
    "conv1.weight": (16, 1, 3, 3),
    "conv1.bias": (16,),
    "conv2.weight": (32, 16, 3, 3),
    "conv2.bias": (32,),
    "head.weight": (10, 512),
    "head.bias": (10,),
}


def untrained_network() -> onnx.ModelProto:
    """The network with random weights, for batches of any size."""
    # The parser of ONNX takes no dots in names.
    model = onnx.parser.parse_model(NETWORK.replace(".weight", "_weight").replace(".bias", "_bias"))
    for node in model.graph.node:
        node.input[:] = [
            name.replace("_weight", ".weight").replace("_bias", ".bias") for name in node.input
        ]
    rng = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        size = np.prod(shape[1:]) if len(shape) > 1 else np.inf
        array = rng.standard_normal(shape) * np.sqrt(2 / size)
        model.graph.initializer.append(numpy_helper.from_array(array.astype("float32"), name))
    return model


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images from 0 to 1, in a random order, and what they show."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(labels))
    images = (images / 16).astype("float32").reshape(-1, 1, 8, 8)
    return images[order], labels[order].astype("int64")


def batches(images: np.ndarray, labels: np.ndarray, epoch: int) -> Iterator[dict[str, np.ndarray]]:
    """All digits once, in an order of this epoch's; what fills no batch is left out."""
    order = np.random.default_rng(epoch).permutation(len(labels))
    for first in range(0, len(order) - BATCH + 1, BATCH):
        chosen = order[first : first + BATCH]
        yield {"image": images[chosen], "target": labels[chosen]}


def accuracy(path: Path, images: np.ndarray, labels: np.ndarray) -> float:
    """The share of images that the model in the file names rightly."""
    logits = tvm_ext.compile(path).run({"image": images})["logits"]
    return float(np.mean(logits.argmax(1) == labels))


def draw(path: Path, losses: list[float], found: list[float]) -> None:
    """The loss of each step, and the accuracy ahead of the first epoch and behind each."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    left.plot(losses, linewidth=1)
    left.set(title="loss of each step", xlabel="step", yscale="log")
    right.plot(range(len(found)), found, marker="o")
    right.set(title="accuracy on digits not trained on", xlabel="epoch", ylim=(0, 1.02))
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def main() -> int:
    """Trains, checks that the accuracy rose, and draws the curves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="where files go")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    try:
        images, labels = digits()
        import matplotlib  # noqa: F401
    except ImportError as error:
        print(f"error: {error.name} is not installed: pip install scikit-learn matplotlib",
              file=sys.stderr)  # fmt: skip
        return 2
    path = folder / "digits.onnx"
    onnx.save(untrained_network(), path)
    seen, known = images[TEST_DIGITS:], labels[TEST_DIGITS:]
    unseen, asked = images[:TEST_DIGITS], labels[:TEST_DIGITS]
    steps = EPOCHS * (len(known) // BATCH)
    trainer = tvm_ext.compile_training(
        path,
        loss="cross_entropy",
        # From the full rate down to nothing.
        optimizer=AdamW(lr=lambda step: 3e-3 * (1 - step / steps), weight_decay=0.01),
        input_shapes={"image": [BATCH, 1, 8, 8]},
        clip_norm=1.0,
    )
    losses, found = [], [accuracy(path, unseen, asked)]
    print(f"ahead of training  accuracy {found[0]:.3f}")
    for epoch in range(EPOCHS):
        losses += trainer.fit(batches(seen, known, epoch))
        trainer.save_onnx(path)
        found.append(accuracy(path, unseen, asked))
        print(f"epoch {epoch + 1:2}  loss {losses[-1]:.4f}  accuracy {found[-1]:.3f}")
    draw(folder / "digits.png", losses, found)
    print(f"wrote {path} and {folder / 'digits.png'}")
    if found[0] > 3 * GUESS or found[-1] < WANTED:
        print(f"error: the accuracy is {found[-1]:.3f}, expected {WANTED}", file=sys.stderr)
        return 1
    print("check passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
