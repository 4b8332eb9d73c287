"""The cases: damaged models, and sound models with damaged inputs."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import input_mutations
import mutations
import numpy as np
import run_time_values
import seeds

import tvm_ext
from tvm_ext.check.inputs import random_inputs

# Random inputs of more bytes than this would be the test's memory and not the compiler's.
_LARGEST_INPUTS = 1 << 28
# What the sizes that a model leaves dynamic are.
_DYNAMIC_SIZE = 16


class InputsTooLargeError(Exception):
    """The model's inputs are too large to be drawn here."""


@dataclass(frozen=True)
class Case:
    """A model and what it is run with.

    Attributes
    ----------
    seed, number : int
        They decide which model it is, and what was done to it.
    folder : Path
        Of all cases; its own lies in it.
    """

    seed: int
    number: int
    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / str(self.number) / "model.onnx"

    @property
    def opt_level(self) -> str:
        raise NotImplementedError

    def content(self) -> tuple[bytes, str]:
        """The file, and what it is: the sound model's name and those of the mutations."""
        raise NotImplementedError

    def inputs(self, compiled: tvm_ext.CompiledModel) -> dict[Any, Any]:
        """What it is run with; raises InputsTooLargeError."""
        raise NotImplementedError

    def write(self) -> str:
        """Puts the file into its folder; says what it is."""
        content, name = self.content()
        self.model.parent.mkdir()
        self.model.write_bytes(content)
        return name

    def _draw(self) -> random.Random:
        return random.Random(f"{self.seed}/{self.number}")


class DamagedModel(Case):
    """A damaged model, run with random numbers."""

    @property
    def opt_level(self) -> str:
        return ("O0", "O3", "O0", "O2")[(self.number // len(seeds.SEEDS)) % 4]

    def content(self) -> tuple[bytes, str]:
        index = self.number % len(seeds.SEEDS)
        content, names = mutations.damaged(seeds.seed_bytes(index), self._draw())
        return content, f"{seeds.SEEDS[index].__name__} {names}"

    def write(self) -> str:
        """The file lies beside what it may refer to."""
        name = super().write()
        (self.model.parent / seeds.WEIGHTS).write_bytes(seeds.external_bytes())
        (self.model.parent / "link").symlink_to(self.folder / "secret")
        return name

    def inputs(self, compiled: tvm_ext.CompiledModel) -> dict[Any, Any]:
        if _bytes_of(compiled.inputs) > _LARGEST_INPUTS:
            raise InputsTooLargeError
        return dict(random_inputs(compiled.inputs, seed=self.number))


def _bytes_of(specs: Any) -> int:
    total = 0
    for spec in specs:
        sizes = [_DYNAMIC_SIZE if isinstance(size, str) else size for size in spec.shape]
        total += 8 * int(np.prod(np.array(sizes, object)))
    return total


class DamagedInputs(Case):
    """A sound model whose indices, counts and sizes are inputs, run with damaged ones."""

    @property
    def opt_level(self) -> str:
        return ("O0", "O3")[(self.number // len(run_time_values.CASES)) % 2]

    def content(self) -> tuple[bytes, str]:
        draw = self._draw()
        model, _ = self._model_and_inputs()
        if draw.random() < 0.5:
            run_time_values.with_symbolic_sizes(model, draw)
        operator = model.graph.node[0].op_type
        return bytes(model.SerializeToString()), f"{operator} {self._changed()[1]}"

    def inputs(self, compiled: tvm_ext.CompiledModel) -> dict[Any, Any]:
        return self._changed()[0]

    def _model_and_inputs(self) -> run_time_values.Fed:
        return run_time_values.model_of(self.number % len(run_time_values.CASES))

    def _changed(self) -> tuple[dict[Any, Any], str]:
        draw = random.Random(f"inputs/{self.seed}/{self.number}")
        return input_mutations.damaged_inputs(self._model_and_inputs()[1], draw)
