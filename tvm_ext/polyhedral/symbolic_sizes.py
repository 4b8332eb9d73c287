"""The symbolic sizes of a kernel: parameters of isl's sets, or numbers that stand for them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import islpy as isl
import tvm

from tvm_ext.polyhedral.size_polynomials import Atoms, Monomial
from tvm_ext.polyhedral.uninterpreted_values import UninterpretedValues


@dataclass
class SampledSizes:
    """A number for each symbolic size, given out in the order in which the sizes are met.

    Attributes
    ----------
    sample : int
        The number of the sample: another one pairs other numbers.
    given : dict[str, int]
        The number of each size that was met, by its name.
    """

    sample: int
    given: dict[str, int] = field(default_factory=dict)
    _numbers: dict[int, int] = field(default_factory=dict)

    def number(self, var: Any) -> int:
        """The number that stands for ``var``."""
        if hash(var) not in self._numbers:
            place = self.sample + _STEP * len(self._numbers)
            self._numbers[hash(var)] = SAMPLES[place % len(SAMPLES)]
            self.given[str(var.name)] = self._numbers[hash(var)]
        return self._numbers[hash(var)]


# Below, at and above the lengths of tiles and vectors. With steps of 2, two sizes differ.
SAMPLES = (1, 5, 16, 33, 200)
_STEP = 2


@dataclass
class Parameters:
    """The symbolic sizes of a kernel, which are parameters of isl's sets.

    A product of sizes, and whatever else of sizes only is not affine, is a parameter of its own.

    Attributes
    ----------
    variables : dict[str, tirx.Var]
        By the name that isl has for them.
    sizes : SampledSizes or None
        The numbers that stand for the symbolic sizes; None where these stay symbolic.
    values : UninterpretedValues
        What is not affine and has a dimension of its own.
    products : dict[tuple of int, str]
        The name of the parameter for a product of several atoms, or for one that is not affine.
    moved : list[int]
        The atoms that are 1 where a tile was moved back; each has a place of its own.
    """

    variables: dict[str, Any] = field(default_factory=dict)
    sizes: SampledSizes | None = None
    values: UninterpretedValues = field(default_factory=UninterpretedValues)
    products: dict[Monomial, str] = field(default_factory=dict)
    moved: list[int] = field(default_factory=list)
    _names: dict[int, str] = field(default_factory=dict)
    _not_negative: set[str] = field(default_factory=set)

    @property
    def atoms(self) -> Atoms:
        """What the kernel's expressions are made of."""
        return self.values.atoms

    def name_of(self, var: Any) -> str:
        """The name of ``var``, which becomes a parameter if it was none."""
        known = self._names.get(hash(var))
        if known is not None:
            return known
        name = str(var.name)
        while name in self.variables:
            name += "_"
        self.variables[name] = var
        self._names[hash(var)] = name
        return name

    def name_of_product(self, atoms: Monomial, is_least: bool) -> str:
        """The name of the parameter for a product of what depends on sizes only.

        ``is_least``: whether it is known not to be negative.
        """
        name = self.products.setdefault(atoms, f"product_{len(self.products)}")
        if is_least:
            self._not_negative.add(name)
        return name

    def note_shape(self, shape: Sequence[Any]) -> None:
        """Notes that no size of an array is negative."""
        self._not_negative |= {self.name_of(size) for size in shape if isinstance(size, tvm.ir.Var)}

    def possible(self, iterations: isl.Set) -> isl.Set:
        """Those of ``iterations`` that no negative size of an array has."""
        for number in range(iterations.dim(isl.dim_type.param)):
            if iterations.get_dim_name(isl.dim_type.param, number) in self._not_negative:
                zero = isl.Val.zero(iterations.get_ctx())
                iterations = iterations.lower_bound_val(isl.dim_type.param, number, zero)
        return iterations
