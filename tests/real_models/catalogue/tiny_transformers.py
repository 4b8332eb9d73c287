"""Builds models of the library transformers from small configurations."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from .entry import Entry, Input, Sizes

BOTH = ("torchscript", "dynamo")


def builder(model: str, options: Mapping[str, Any], use_cache: bool = False) -> Callable[[], Any]:
    """Builds class ``model`` of transformers, its configuration from ``options``."""

    def build() -> Any:
        import transformers

        kind = getattr(transformers, model)
        # Configurations take what they read out of nested ones.
        settings = kind.config_class(**deepcopy(dict(options)))
        settings.use_cache = use_cache
        return kind(settings)

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
    """A model by the name of its class."""
    build = builder(model, options)
    family = f"transformers ({'vision' if _is_vision(inputs) else 'language, speech'})"
    return Entry(model, family, exporters, build, inputs, sizes, options={"by_name": True, **more})


def _is_vision(inputs: Mapping[str, Input]) -> bool:
    return any("pixel" in name for name in inputs)
