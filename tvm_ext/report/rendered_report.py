"""What every report can be made into: text, JSON and a page."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_ext.configs.atomic_file import write_text

if TYPE_CHECKING:
    from rich.console import RenderableType


class RenderedReport(ABC):
    """A report for people: in a terminal (rich prints it), as a page, and as JSON."""

    @abstractmethod
    def __rich__(self) -> "RenderableType": ...

    @abstractmethod
    def to_json(self, indent: int | None = 2) -> str:
        """Return the report as JSON."""

    @abstractmethod
    def to_html(self) -> str:
        """Return one self-contained page, which loads nothing from anywhere."""

    def to_text(self, width: int = 100) -> str:
        """Return the summary that the command line prints, ``width`` characters wide."""
        from tvm_ext.report.terminal_tables import plain_text

        return plain_text(self.__rich__(), width)

    def save_html(self, path: str | Path) -> None:
        """Write the page; a reader of ``path`` sees the old file or the whole new one.

        Raises
        ------
        OutputPathError
            If the file cannot be written.
        """
        write_text(path, self.to_html())

    def save(self, path: Path) -> None:
        """Write the page or the JSON, as the path's ending says; raises as ``save_html``."""
        if path.suffix == ".html":
            self.save_html(path)
        else:
            write_text(path, self.to_json() + "\n")
