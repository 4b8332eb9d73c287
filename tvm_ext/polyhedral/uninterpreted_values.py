"""Products of loops with sizes, and quotients by sizes, as values of which only some is known.

``row * length`` and ``i // length`` are no affine functions where ``length`` is symbolic. Each
becomes a dimension of its own beside the loops, with what is affine of it: a multiple of ``length``
is at least ``length`` apart from every other one, and a quotient times ``length`` is the largest
multiple up to what is divided. After W. Pugh and D. Wonnacott, "Nonlinear array dependence
analysis", 1994, where such values are uninterpreted function symbols.

What is found with them holds for all runs, and more runs are possible than there are: no
dependence between them proves that there is none, and a dependence may not be one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import islpy as isl

from tvm_ext.polyhedral.size_polynomials import Atoms, Monomial

# Each value is a dimension of all sets, and three cases in what two runs have in common.
_MOST_VALUES = 10


@dataclass
class UninterpretedValues:
    """The values of a kernel.

    Attributes
    ----------
    dimensions : dict of Monomial to int
        The number of each value's dimension, behind those of the loops: of a product by its atoms,
        of a quotient by the atom that it is.
    atoms : Atoms
        What the kernel's expressions are made of.
    wanted : list of Monomial
        What was met and has no dimension.
    """

    dimensions: Mapping[Monomial, int] = field(default_factory=dict)
    atoms: Atoms = field(default_factory=Atoms)
    wanted: list[Monomial] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The names of the dimensions."""
        return [f"x{number}" for number in range(len(self.dimensions))]

    @property
    def products(self) -> list[Monomial]:
        """Those that are products."""
        return [one for one in self.dimensions if len(one) > 1]

    def dimension(self, value: Monomial) -> int | None:
        """The number of a value's dimension; None where it has none, which is then wanted."""
        found = self.dimensions.get(value)
        if found is None and value not in self.wanted:
            self.wanted.append(value)
        return found

    def extended(self) -> "UninterpretedValues | None":
        """These with a dimension for all that is wanted; None where that changes nothing."""
        every = [*self.dimensions, *self.wanted]
        if not self.wanted or len(every) > _MOST_VALUES:
            return None
        return UninterpretedValues({one: n for n, one in enumerate(every)}, self.atoms)


@dataclass(frozen=True)
class Multiple:
    """A value that is ``factor * size``, each a function of the runs of one statement."""

    factor: isl.PwAff
    value: isl.PwAff
    size: isl.PwAff

    def bounds(self) -> isl.Set:
        """The runs for which 0, the multiple for a factor of 0, is as far away as it must be."""
        none = self.factor.sub(self.factor)
        same = self.factor.eq_set(none).intersect(self.value.eq_set(none))
        above = self.factor.gt_set(none).intersect(self.value.ge_set(self.size))
        below = self.factor.lt_set(none).intersect(self.value.add(self.size).le_set(none))
        return same.union(above).union(below)

    @property
    def parts(self) -> list[isl.Map]:
        """Factor, value and size, as maps of one dimension each."""
        return [isl.Map.from_pw_aff(one) for one in (self.factor, self.value, self.size)]


def with_multiples(runs: isl.Map, multiples: Sequence[Multiple | None]) -> isl.Map:
    """``runs`` with three more dimensions in its range for each multiple, which may be any."""
    for one in multiples:
        line = isl.Set.universe(isl.Space.set_alloc(runs.get_ctx(), 0, 1))
        anything = isl.Map.from_domain_and_range(runs.domain(), line)
        for part in [anything] * 3 if one is None else one.parts:
            runs = runs.flat_range_product(part)
    return runs


def multiples_agree(count: int) -> tuple[list[str], list[str], str]:
    """The dimensions that ``with_multiples`` adds, for two runs, and what holds between these.

    Equal factors have equal multiples, and other ones are the size apart.
    """
    first, second = (
        [f"{part}{end}{number}" for number in range(count) for part in ("f", "m", "s")]
        for end in ("a", "b")
    )
    cases = [
        f"((fa{n} = fb{n} and ma{n} = mb{n}) or (fa{n} < fb{n} and ma{n} + sa{n} <= mb{n})"
        f" or (fa{n} > fb{n} and mb{n} + sb{n} <= ma{n}))"
        for n in range(count)
    ]
    return first, second, " and ".join(cases) or "true"
