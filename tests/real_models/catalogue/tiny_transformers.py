"""Builds models of the library transformers from small configurations."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from .entry import Entry, Input, Sizes

BOTH = ("torchscript", "dynamo")


def builder(
    model: str, config: str, options: Mapping[str, Any], use_cache: bool = False
) -> Callable[[], Any]:
    """Builds class ``model`` from class ``config`` with ``options``, both of transformers."""

    def build() -> Any:
        import transformers

        settings = getattr(transformers, config)(**options)
        settings.use_cache = use_cache
        return getattr(transformers, model)(settings)

    return build


def entry(
    model: str,
    options: Mapping[str, Any],
    inputs: Mapping[str, Input],
    sizes: tuple[Sizes, ...],
    *,
    exporters: tuple[str, ...] = BOTH,
    **more: Any,
) -> Entry:
    """A model by the name of its class, whose configuration's name follows from it."""
    build = builder(model, configuration(model), options)
    family = f"transformers ({'vision' if _is_vision(inputs) else 'language, speech'})"
    return Entry(model, family, exporters, build, inputs, sizes, options={"by_name": True, **more})


def configuration(model: str) -> str:
    """``BertConfig`` of ``BertForMaskedLM`` and of ``BertModel``."""
    stem = re.split(r"For[A-Z]|LMHead|MTModel|Model", model)[0]
    return f"{stem}Config"


def _is_vision(inputs: Mapping[str, Input]) -> bool:
    return any("pixel" in name for name in inputs)
