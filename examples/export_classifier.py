"""Exports a torchvision network to ONNX, with what PyTorch computes for one batch of pictures.

Run by image_classifier.py, in its own process, with a Python that has torch and torchvision; that
environment needs nothing of tvm-ext.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

try:
    import torch
    import torchvision
    import torchvision.models
# torchvision raises RuntimeError or OSError where it does not fit the torch beside it.
except (ImportError, RuntimeError, OSError) as error:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    print(f"torch and torchvision cannot be imported: {lines[0]}", file=sys.stderr)
    sys.exit(2)


def network(name: str) -> tuple[torch.nn.Module, str, list[str]]:
    """The network with trained weights if they can be had; says which, and names its classes."""
    weights = torchvision.models.get_model_weights(name).DEFAULT
    classes = list(weights.meta["categories"])
    try:
        return torchvision.models.get_model(name, weights=weights), "trained", classes
    # What a download fails with: no network, no such file, a checksum that differs.
    except (OSError, RuntimeError):
        torch.manual_seed(0)
        return torchvision.models.get_model(name, weights=None), "random", classes


def main() -> None:
    """Writes the model, PyTorch's outputs for the pictures, and a description, into a folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="of the network in torchvision")
    parser.add_argument("pictures", type=Path, help="a .npy file, float32[N, 3, H, W]")
    parser.add_argument("folder", type=Path, help="where files are written")
    given = parser.parse_args()
    model, weights, classes = network(given.name)
    model.eval()
    pictures = torch.from_numpy(np.load(given.pictures))
    with torch.inference_mode():
        np.save(given.folder / f"{given.name}.outputs.npy", model(pictures).numpy())
    torch.onnx.export(
        model,
        (pictures,),
        given.folder / f"{given.name}.onnx",
        input_names=["pictures"],
        output_names=["scores"],
        dynamic_shapes=({0: torch.export.Dim("N")},),
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    described = {
        "weights": weights,
        "classes": classes,
        "versions": f"torch {torch.__version__}, torchvision {torchvision.__version__}",
    }
    (given.folder / f"{given.name}.json").write_text(json.dumps(described))


if __name__ == "__main__":
    main()
