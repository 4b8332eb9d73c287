"""What the files beside a model say: config.json and generation_config.json, as exporters leave
them. All of it is optional, and an argument of the caller's comes first.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CONTEXT = ("max_position_embeddings", "max_target_positions", "n_positions")
_FILES = ("generation_config.json", "config.json")


@dataclass(frozen=True)
class ModelFiles:
    """What is said of a model.

    Attributes
    ----------
    end_tokens : tuple[int, ...]
        Tokens that end a text.
    start_tokens : tuple[int, ...]
        Tokens with which a decoder behind an encoder begins.
    suppressed, suppressed_first : tuple[int, ...]
        Tokens that are never chosen, and those that are not chosen first.
    context : int, optional
        Tokens that the model can read, its own included.
    """

    end_tokens: tuple[int, ...] = ()
    start_tokens: tuple[int, ...] = ()
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()
    context: int | None = None

    @classmethod
    def beside(cls, paths: Iterable[str | Path]) -> "ModelFiles":
        """From the folders of these files and, of a folder named onnx, the one above it."""
        values: dict[str, Any] = {}
        for folder in _folders(paths):
            for name in _FILES:
                # What is found first holds: texts are made as generation_config.json says.
                values = _read(folder / name) | values
        start = _numbers(values.get("decoder_start_token_id"))
        forced = values.get("forced_decoder_ids")
        return cls(
            end_tokens=_numbers(values.get("eos_token_id")),
            start_tokens=(*start, *_forced(forced, len(start))),
            suppressed=_numbers(values.get("suppress_tokens")),
            suppressed_first=_numbers(values.get("begin_suppress_tokens")),
            context=next(
                (n for name in _CONTEXT for n in _numbers(values.get(name)) if n > 0), None
            ),
        )


def _folders(paths: Iterable[str | Path]) -> list[Path]:
    folders = []
    for path in paths:
        folder = Path(path).absolute().parent
        folders += [folder, *([folder.parent] if folder.name == "onnx" else [])]
    return list(dict.fromkeys(folders))


def _read(path: Path) -> dict[str, Any]:
    """What a file holds; nothing where it is none, or is meant for something else."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _numbers(value: Any) -> tuple[int, ...]:
    """One number, or several; nothing else."""
    found = value if isinstance(value, list) else [value]
    return tuple(n for n in found if isinstance(n, int) and not isinstance(n, bool) and n >= 0)


def _forced(pairs: Any, begin: int) -> tuple[int, ...]:
    """Tokens that stand at fixed places behind the first: [[1, 50259], [2, 50359]].

    A place that is left to the model, as the language of Whisper is, ends them.
    """
    tokens: list[int] = []
    for pair in pairs if isinstance(pairs, list) else []:
        is_next = isinstance(pair, list) and len(pair) == 2 and pair[0] == begin + len(tokens)
        if not is_next or not isinstance(pair[1], int):
            break
        tokens.append(pair[1])
    return tuple(tokens)
