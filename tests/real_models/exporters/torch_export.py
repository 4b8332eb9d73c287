"""Both exporters of PyTorch: by tracing to TorchScript, and by torch.export ("dynamo")."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from catalogue.entry import DYNAMIC, ExportedEntry, Input
from drawing import draw_inputs

OPSETS = {"torchscript": 17, "dynamo": 20}


def by_torchscript(case: ExportedEntry) -> None:
    """``torch.onnx.export(dynamo=False)``."""
    import torch

    names = list(case.entry.inputs)
    dynamic = {name: _names(one) for name, one in case.entry.inputs.items() if _names(one)}
    torch.onnx.export(
        _module(case),
        _arguments(case),
        case.folder / "model.onnx",
        input_names=names,
        dynamic_axes=dynamic if case.form == DYNAMIC else None,
        opset_version=case.entry.options.get("opset", OPSETS["torchscript"]),
        dynamo=False,
    )


def by_dynamo(case: ExportedEntry) -> None:
    """``torch.onnx.export(dynamo=True)``."""
    import torch

    names = list(case.entry.inputs)
    shapes = tuple(_names(one) for one in case.entry.inputs.values())
    torch.onnx.export(
        _module(case),
        _arguments(case),
        case.folder / "model.onnx",
        input_names=names,
        dynamic_shapes=({"arguments": shapes}) if case.form == DYNAMIC else None,
        opset_version=case.entry.options.get("opset", OPSETS["dynamo"]),
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def _names(one: Input) -> dict[int, str]:
    return {axis: size for axis, size in enumerate(one.shape) if isinstance(size, str)}


def _arguments(case: ExportedEntry) -> tuple[Any, ...]:
    import torch

    arrays = draw_inputs(case.entry.inputs, case.entry.sizes[0], seed=0)
    return tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays.values())


def _module(case: ExportedEntry) -> Any:
    """The model behind positional parameters, its outputs as a flat tuple."""
    import torch

    torch.manual_seed(0)
    model = case.entry.build().eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    names = list(case.entry.inputs) if case.entry.options.get("by_name") else None

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *arguments: Any) -> tuple[Any, ...]:
            if names is None:
                found = self.model(*arguments)
            else:
                found = self.model(**dict(zip(names, arguments, strict=True)))
            return tuple(_tensors(found))

    return Flat().eval()


def _tensors(value: Any) -> Iterator[Any]:
    """The tensors in dictionaries, lists and records, without what only holds caches."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for one in value:
            yield from _tensors(one)
