"""What the catalogue says of a model: how it is built, what it is fed, and who exports it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

Size: TypeAlias = "int | str"
Sizes: TypeAlias = Mapping[str, int]

STATIC, DYNAMIC = "static", "dynamic"
FORMS = (STATIC, DYNAMIC)


@dataclass(frozen=True)
class Input:
    """How an input's values are drawn.

    Attributes
    ----------
    dtype : str
        NumPy's name; ``str`` draws one of ``words``.
    shape : sequence of int or str
        A string names a dimension, or is a sum or product of such, as exporters write them; its
        size is looked up in the entry's.
    kind : "normal", "range", "mask" or "value"
        ``range`` draws integers from ``low`` up to below ``high``, floats evenly; ``mask`` has ones
        for at least half of the last axis, then zeros; ``value`` is ``low`` everywhere.
    """

    dtype: str
    shape: Sequence[Size]
    kind: Literal["normal", "range", "mask", "value"] = "normal"
    low: float = 0
    high: float = 2
    words: Sequence[str] = ()


def floats(*shape: Size, low: float | None = None, high: float = 1) -> Input:
    """Standard normal values, or evenly between ``low`` and ``high``."""
    if low is None:
        return Input("float32", shape)
    return Input("float32", shape, "range", low, high)


def integers(*shape: Size, high: int, low: int = 0) -> Input:
    """Indices, tokens: int64 from ``low`` up to below ``high``."""
    return Input("int64", shape, "range", low, high)


def mask(*shape: Size) -> Input:
    """An attention mask with padding at its end."""
    return Input("int64", shape, "mask")


@dataclass(frozen=True)
class Entry:
    """A model of the catalogue.

    Attributes
    ----------
    name : str
        Unique in the whole catalogue; the page prints it.
    family : str
        The heading under which the page prints it.
    exporters : sequence of str
        Names of ``exporters.EXPORTERS``; each writes the model in each of ``forms``.
    build : callable
        Returns what these exporters take; it imports its libraries itself, so that the catalogue
        can be read without them.
    inputs : mapping of name to Input
        In the order of the model's parameters.
    sizes : sequence of Sizes
        What the named dimensions are in one run each. The first are those that the model is
        exported with, which are the only ones of the static form.
    options : mapping
        What the exporter needs to know besides.
    """

    name: str
    family: str
    exporters: Sequence[str]
    build: Callable[[], Any]
    inputs: Mapping[str, Input]
    sizes: Sequence[Sizes]
    forms: Sequence[str] = FORMS
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExportedEntry:
    """An entry, as one exporter writes it in one form.

    Attributes
    ----------
    cache : Path
        Folder of all cases; ``folder`` within it holds the exported files and what was found.
    """

    entry: Entry
    exporter: str
    form: str
    cache: Path

    @property
    def name(self) -> str:
        return f"{self.entry.name} {self.exporter} {self.form}"

    @property
    def folder(self) -> Path:
        return self.cache / self.name.replace(" ", ".").replace("/", "-")

    @property
    def mark(self) -> Path:
        """Says that the case was exported, or why it could not be."""
        return self.folder / "exported.json"

    @property
    def sizes(self) -> Sequence[Sizes]:
        """Of each run."""
        return self.entry.sizes if self.form == DYNAMIC else self.entry.sizes[:1]
