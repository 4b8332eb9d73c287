"""The models of the sweep, as data: one file a family."""

from pathlib import Path

from . import (
    keras_models,
    optimum_models,
    scikit_models,
    speech_models,
    timm_models,
    torchvision_models,
    transformers_audio,
    transformers_cached,
    transformers_language,
    transformers_newer,
    transformers_scenes,
    transformers_series,
    transformers_speech,
    transformers_vision,
    tree_models,
    ultralytics_models,
)
from .entry import Entry, ExportedEntry

ENTRIES: tuple[Entry, ...] = (
    *torchvision_models.ENTRIES,
    *timm_models.ENTRIES,
    *transformers_language.ENTRIES,
    *transformers_vision.ENTRIES,
    *transformers_speech.ENTRIES,
    *transformers_cached.ENTRIES,
    *transformers_newer.ENTRIES,
    *transformers_scenes.ENTRIES,
    *transformers_audio.ENTRIES,
    *transformers_series.ENTRIES,
    *optimum_models.ENTRIES,
    *speech_models.ENTRIES,
    *ultralytics_models.ENTRIES,
    *keras_models.ENTRIES,
    *scikit_models.ENTRIES,
    *tree_models.ENTRIES,
)


def all_cases(cache: Path) -> list[ExportedEntry]:
    """Every entry, by each of its exporters, in each of its forms."""
    return [
        ExportedEntry(entry, exporter, form, cache)
        for entry in ENTRIES
        for exporter in entry.exporters
        for form in entry.forms
    ]
