"""Optimum: transformers as encoders, decoders with and without past, and both merged in an If."""

from catalogue.entry import ExportedEntry


def by_optimum(case: ExportedEntry) -> None:
    """One task of a model; several files where it has several parts. Always of dynamic sizes."""
    import torch
    from optimum.exporters.onnx import onnx_export_from_model

    torch.manual_seed(0)
    onnx_export_from_model(
        case.entry.build().eval(),
        output=case.folder,
        task=case.entry.options["task"],
        do_validation=False,
        no_post_process=case.entry.options.get("unmerged", False),
        slim=False,
    )
