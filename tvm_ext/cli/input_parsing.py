"""Parses option values, such as ``name=value``, and reads or makes up the inputs of a run."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_ext.errors import InputError
from tvm_ext.tensor_spec import parse_size

if TYPE_CHECKING:
    import numpy as np

    from tvm_ext.tensor_spec import TensorSpec


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse_input_shapes(texts: Iterable[str]) -> dict[str, tuple[int | str, ...]]:
    """``["x=N,3,224:640"]`` to ``{"x": ("N", 3, "224:640")}``; ``x=`` is a scalar.

    The last ``=`` parts name and sizes, since ONNX names may hold one.

    Raises
    ------
    InputError
        A text has another form, something in it is no size, or a name comes twice.
    """
    shapes: dict[str, tuple[int | str, ...]] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        if not equals or not name:
            raise InputError(
                f"--input-shape {text!r} names no input; expected NAME=SIZES such as "
                "x=1,3,224,224: use that form"
            )
        if name in shapes:
            raise InputError(
                f"--input-shape was given twice for input '{name}'; expected one: leave the other "
                f"out"
            )
        shapes[name] = _parse_sizes(text, sizes)
    return shapes


def parse_input_ranges(texts: Iterable[str]) -> dict[str, tuple[float, float]]:
    """``["x=-1:1"]`` to ``{"x": (-1.0, 1.0)}``.

    Raises
    ------
    InputError
        A text has another form, or a name comes twice.
    """
    ranges: dict[str, tuple[float, float]] = {}
    for text in texts:
        name, _, bounds = text.rpartition("=")
        low, _, high = bounds.partition(":")
        try:
            found = float(low), float(high)
        except ValueError:
            found = (math.nan, math.nan)
        if not name or name in ranges or any(map(math.isnan, found)):
            raise InputError(
                f"--input-range {text!r} is not the one range of an input; expected NAME=LOW:HIGH "
                "such as x=0:1, once for each input: use that form"
            )
        ranges[name] = found
    return ranges


def _parse_sizes(text: str, sizes: str) -> tuple[int | str, ...]:
    parts = [part.strip() for part in sizes.split(",")] if sizes.strip() else []
    found: list[int | str] = []
    for part in parts:
        try:
            size = parse_size(part)
        except InputError as error:
            raise InputError(f"--input-shape {text!r}: {error}") from error
        found.append(size if isinstance(size, int) else part)
    return tuple(found)


def parse_dimension_sizes(texts: Iterable[str], option: str = "--size") -> dict[str, int]:
    """``["N=4"]`` to ``{"N": 4}``; raises InputError for another form or a repeated name."""
    sizes: dict[str, int] = {}
    for text in texts:
        name, equals, size = text.rpartition("=")
        if not (equals and name and size.isascii() and size.isdecimal() and int(size) > 0):
            raise InputError(
                f"{option} {text!r} is not DIM=N with a positive integer; expected for example "
                "N=4: use that form"
            )
        if name in sizes:
            raise InputError(
                f"{option} was given twice for dimension '{name}'; expected one: leave the other "
                f"out"
            )
        sizes[name] = int(size)
    return sizes


def parse_specializations(texts: Iterable[str]) -> tuple[dict[str, int], ...]:
    """``["N=8,L=64"]`` to ``({"N": 8, "L": 64},)``; raises InputError for another form."""
    return tuple(parse_dimension_sizes(text.split(","), "--specialize") for text in texts)


def parse_pass_config(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """``["MyPass.limit=64"]`` to ``{"MyPass": {"limit": 64}}``.

    A value is read as TOML (number, ``true``, quoted text, list) and is plain text otherwise.

    Raises
    ------
    InputError
        A text has another form, or an option comes twice.
    """
    config: dict[str, dict[str, Any]] = {}
    for text in texts:
        left, equals, value = text.partition("=")
        name, dot, option = left.strip().rpartition(".")
        if not (equals and dot and name and option):
            raise InputError(
                f"--pass-config {text!r} is not PASS.OPTION=VALUE; expected for example "
                "MyPass.limit=64: use that form"
            )
        if option in config.setdefault(name, {}):
            raise InputError(
                f"--pass-config was given twice for {name}.{option}; expected one: leave the "
                f"other out"
            )
        config[name][option] = _toml_value(value)
    return config


def _toml_value(text: str) -> Any:
    try:
        table = tomllib.loads(f"value = {text.strip()}")
    except tomllib.TOMLDecodeError:
        return text
    # A line break in the text would begin a second key.
    return table["value"] if len(table) == 1 else text


# The inputs of a run: read from a file, or made up.


class Fill(str, Enum):
    """What made-up inputs hold."""

    random = "random"
    zeros = "zeros"
    ones = "ones"


@dataclass(frozen=True)
class InputSource:
    """Where the inputs come from; a file, or else how to make them up.

    Attributes
    ----------
    file : Path, optional
        What ``tvm_ext.check.inputs.load_inputs`` reads.
    fill, seed
        Kind and seed of made-up inputs.
    sizes : mapping of symbolic dimension to size
        For made-up inputs of a model with dynamic dimensions.
    """

    file: Path | None = None
    fill: Fill = Fill.random
    seed: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parsed(
        cls,
        file: Path | None,
        fill: Fill | None = None,
        seed: int | None = None,
        size: Sequence[str] | None = None,
    ) -> "InputSource":
        """From the command line.

        Raises
        ------
        InputError
            The file does not exist, or comes with options for made-up inputs.
        """
        made_up = {"--fill": fill is not None, "--seed": seed is not None, "--size": size}
        names = ", ".join(name for name, present in made_up.items() if present)
        if file is not None and names:
            raise InputError(
                f"--inputs was given with {names}; expected either a file or made-up inputs: "
                f"leave one of them out"
            )
        if file is not None and not file.exists():
            # Known before a long compilation, not after it.
            raise InputError(f"{file}: no such file; expected arrays (.npz): check the path")
        return cls(file, fill or Fill.random, seed or 0, parse_dimension_sizes(size or ()))

    def arrays(self, specs: "Sequence[TensorSpec]") -> "dict[str, np.ndarray]":
        """One array for each input; raises InputError when the file or a size does not fit."""
        import numpy as np

        from tvm_ext.check.inputs import load_inputs, random_inputs

        if self.file is not None:
            return load_inputs(self.file, specs)
        arrays = random_inputs(specs, self.seed, self.sizes)
        if self.fill is Fill.random:
            return arrays
        make = np.zeros_like if self.fill is Fill.zeros else np.ones_like
        return {name: make(array) for name, array in arrays.items()}


def parse_shard(texts: Sequence[str]) -> "str | dict[str, int] | None":
    """``data``, ``tensor`` and ``auto`` as they are, ``PATTERN=AXIS`` as axes by pattern.

    Raises
    ------
    InputError
        A text has another form.
    """
    if not texts:
        return None
    if len(texts) == 1 and "=" not in texts[0]:
        return texts[0]
    axes = {}
    for text in texts:
        pattern, _, axis = text.rpartition("=")
        if not pattern or not axis.removeprefix("-").isdecimal():
            raise InputError(
                f"--shard '{text}' is no pattern with an axis; expected PATTERN=AXIS, or one of "
                "data, tensor and auto: write '*/fc1/*=1'"
            )
        axes[pattern] = int(axis)
    return axes
