"""The inputs of a run: read from a file, or made up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_ext.cli.input_parsing import parse_dimension_sizes
from tvm_ext.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from tvm_ext.tensor_spec import TensorSpec


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
        What ``tvm_ext.check.random_inputs.load_inputs`` reads.
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
                f"--inputs comes with {names}; expected either a file or made-up inputs: drop one"
            )
        if file is not None and not file.exists():
            # Known before a long compilation, not after it.
            raise InputError(f"{file}: no such file; expected arrays (.npz): check the path")
        return cls(file, fill or Fill.random, seed or 0, parse_dimension_sizes(size or ()))

    def arrays(self, specs: "Sequence[TensorSpec]") -> "dict[str, np.ndarray]":
        """One array for each input; raises InputError when the file or a size does not fit."""
        import numpy as np

        from tvm_ext.check.random_inputs import load_inputs, random_inputs

        if self.file is not None:
            return load_inputs(self.file, specs)
        arrays = random_inputs(specs, self.seed, self.sizes)
        if self.fill is Fill.random:
            return arrays
        make = np.zeros_like if self.fill is Fill.zeros else np.ones_like
        return {name: make(array) for name, array in arrays.items()}
