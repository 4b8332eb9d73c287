"""Integer expressions of TIR as quasi-affine functions of isl, and conditions as sets.

A quasi-affine function is a sum of multiples of loop variables and symbolic sizes, with divisions
and remainders by numbers. What is none raises NotAffine, which says why.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, TypeAlias

import islpy as isl
import tvm
from tvm import tirx

from tvm_ext.polyhedral.size_polynomials import (
    Monomial,
    Polynomial,
    PolynomialReader,
    constant,
    divided,
    product,
    total,
)
from tvm_ext.polyhedral.symbolic_sizes import Parameters
from tvm_ext.polyhedral.uninterpreted_values import Multiple
from tvm_ext.tir_schedules.analysis.buffer_access import nodes


class NotAffine(Exception):
    """An expression is no quasi-affine function of loops and sizes; ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class AffineReader:
    """Reads expressions over the loops around one statement.

    Parameters
    ----------
    space : isl.Space
        The set space of the statement: a dimension for each loop.
    loops : mapping of int to int
        The number of each loop's dimension by the hash of its variable.
    bound : mapping of int to expression
        What other variables stand for, by their hash: iterations of blocks and bound names.
    parameters : Parameters
        Gets the symbolic sizes that are met.
    stored : mapping of Element to expression
        What was stored, once and for all, to elements of arrays of integers.
    """

    def __init__(
        self,
        space: isl.Space,
        loops: Mapping[int, int],
        bound: Mapping[int, Any],
        parameters: Parameters,
        stored: "Mapping[Element, Any] | None" = None,
    ) -> None:
        self.space = space
        self._loops = loops
        self._bound = bound
        self._parameters = parameters
        self._stored = stored or {}
        self._atoms = parameters.atoms
        self._polynomials = PolynomialReader(parameters.atoms, self._meaning, self._divided)
        self._values: dict[int, isl.PwAff] = {}
        self._iterations = isl.Set.universe(space)
        self.known = isl.Set.universe(space)
        self.multiples: dict[Monomial, Multiple] = {}
        self._sizes: set[int] = set()

    def inside(
        self, loop: Any, bound: Mapping[int, Any], stored: "Mapping[Element, Any]"
    ) -> "AffineReader":
        """A reader in one more loop, or in none, which knows the values that this one has found."""
        loops = dict(self._loops)
        space, added = self.space, 0
        if loop is not None:
            loops[hash(loop.loop_var)] = len(loops)
            added = 1
        place = len(self._loops)
        space = space.insert_dims(isl.dim_type.set, place, added)
        found = AffineReader(space, loops, bound, self._parameters, stored)

        def lifted(value: isl.PwAff) -> isl.PwAff:
            return value.insert_dims(isl.dim_type.in_, place, added) if added else value

        found._values = {atom: lifted(value) for atom, value in self._values.items()}
        found._sizes = set(self._sizes)
        found.multiples = {
            atoms: Multiple(lifted(one.factor), lifted(one.value), lifted(one.size))
            for atoms, one in self.multiples.items()
        }
        found.known = self.known.insert_dims(isl.dim_type.set, place, added)
        return found

    def within(self, iterations: isl.Set) -> None:
        """From now on only these iterations count: there, more divisions are known."""
        self._iterations = iterations
        self._polynomials.forget()

    def _note(self, holds: isl.Set) -> None:
        """From now on this is known of the values that are not interpreted."""
        self.known = self.known.intersect(holds).coalesce()

    def value(self, expr: Any) -> isl.PwAff:
        """``expr`` as a function of the loops. Raises NotAffine."""
        return self.value_of(self.polynomial(expr))

    def polynomial(self, expr: Any) -> Polynomial:
        """``expr`` as a polynomial of the kernel's atoms."""
        return self._polynomials.read(expr)

    def value_of(self, polynomial: Polynomial) -> isl.PwAff:
        """A polynomial as a function of the loops. Raises NotAffine."""
        found = self._number(polynomial.get((), 0))
        for monomial, factor in polynomial.items():
            if monomial:
                number = isl.Val.int_from_si(self.space.get_ctx(), factor)
                found = found.add(self._product(monomial).scale_val(number))
        return found

    def digits(
        self, address: Polynomial, sizes: Sequence[Polynomial], last: int, is_certain: bool
    ) -> list[Polynomial]:
        """An address as the indices of an array of these sizes.

        Parameters
        ----------
        last : int
            The distance of the last element that is accessed from ``address``, for vectors.
        is_certain : bool
            Whether the indices are known to be within the sizes; else this is proved, or NotAffine
            is raised.
        """
        found: list[Polynomial] = []
        for size in reversed(sizes[1:]):
            address, digit = divided(address, size) if size else ({}, address)
            end = total(digit, constant(last))
            if not is_certain and not (self._is_least(digit) and self._is_less(end, size)):
                raise NotAffine("an address is not known to lie in one row of its array")
            found.append(digit)
            last = 0
        return [address, *reversed(found)]

    def moved_back(self, address: Polynomial) -> Polynomial:
        """A number that is 0 but where a tile of which ``address`` is a part was moved back.

        A tile begins at a multiple of its length, or where it ends with the array.
        """
        found: Polynomial = {}
        for start in self._starts([self._atoms.exprs[a] for atoms in address for a in atoms]):
            is_moved = self._atoms.number(tirx.GT(start.a, start.b))
            places = self._parameters.moved
            if is_moved not in places:
                places.append(is_moved)
            found = total(found, {(is_moved,): 1 << places.index(is_moved)})
        return found

    def _starts(self, exprs: list[Any]) -> list[tirx.Min]:
        """Where tiles begin that ``exprs`` are computed from."""
        found: list[tirx.Min] = []
        seen: set[int] = set()
        while exprs:
            expr = exprs.pop()
            if isinstance(expr, int) or hash(expr) in seen:
                continue
            seen.add(hash(expr))
            found += [one for one in nodes(expr, tirx.Min) if _is_start_of_tile(one)]
            leaves = nodes(expr, tvm.ir.Var, tvm.ir.TensorLoad)
            exprs += [one for one in map(self._meaning, leaves) if one is not None]
        return found

    def depends_on(self, polynomial: Polynomial, dimension: int) -> bool:
        """Whether a polynomial may change in a loop and in those inside, or with what is loaded."""
        loops = {loop for loop, number in self._loops.items() if number < dimension}
        atoms = {atom for monomial in polynomial for atom in monomial}
        return not all(self._is_of_sizes(self._atoms.exprs[atom], loops) for atom in atoms)

    def condition(self, expr: Any) -> isl.Set:
        """The iterations for which ``expr`` holds. Raises NotAffine."""
        if isinstance(expr, tirx.IntImm):
            whole = isl.Set.universe(self.space)
            return whole if int(expr.value) else isl.Set.empty(self.space)
        comparison = _COMPARISONS.get(type(expr))
        if comparison is not None:
            difference = total(self.polynomial(expr.a), self.polynomial(expr.b), -1)
            return comparison(self.value_of(difference), self._number(0))
        if isinstance(expr, tirx.And):
            return self.condition(expr.a).intersect(self.condition(expr.b))
        if isinstance(expr, tirx.Or):
            return self.condition(expr.a).union(self.condition(expr.b))
        if isinstance(expr, tirx.Not):
            return self.condition(expr.a).complement()
        if isinstance(expr, tvm.ir.Call) and _operator(expr).endswith("likely"):
            return self.condition(expr.args[0])
        if isinstance(expr, tvm.ir.Var | tvm.ir.TensorLoad):
            meaning = self._meaning(expr)
            if meaning is not None and not isinstance(meaning, int):
                return self.condition(meaning)
        raise NotAffine(f"the condition {_short(expr)} is no comparison of loops and sizes")

    def index(self, index: Any) -> isl.Map:
        """The positions that an index takes, several where it is a vector. Raises NotAffine.

        It is an expression or a polynomial, or holds one as the ``base`` of a vector.
        """
        if not hasattr(index, "lanes"):
            return isl.Map.from_pw_aff(self._value_of_index(index))
        stride, lanes = _number_of(index.stride), _number_of(index.lanes)
        if stride is None or lanes is None:
            raise NotAffine(f"the vector {_short(index)} has no known stride")
        step = isl.Map.read_from_str(
            self.space.get_ctx(),
            f"{{ [b] -> [v] : exists l : v = b + {stride}l and 0 <= l < {lanes} }}",
        )
        return isl.Map.from_pw_aff(self._value_of_index(index.base)).apply_range(step)

    def _value_of_index(self, index: Any) -> isl.PwAff:
        is_polynomial = isinstance(index, dict)
        return self.value_of(index) if is_polynomial else self.value(index)

    def _number(self, value: int) -> isl.PwAff:
        number = isl.Val.int_from_si(self.space.get_ctx(), value)
        return isl.PwAff.from_aff(isl.Aff.val_on_domain_space(self.space, number))

    def _parameter(self, name: str) -> isl.PwAff:
        identifier = isl.Id(name, context=self.space.get_ctx())
        space = self.space.add_param_id(identifier)
        return isl.PwAff.from_aff(isl.Aff.param_on_domain_space_id(space, identifier))

    def _meaning(self, leaf: Any) -> Any:
        """What a variable or a load stands for; None for itself."""
        if isinstance(leaf, tvm.ir.TensorLoad):
            element = element_of(leaf)
            return None if element is None else self._stored.get(element)
        if hash(leaf) in self._loops:
            return None
        if hash(leaf) in self._bound:
            return self._bound[hash(leaf)]
        sizes = self._parameters.sizes
        return None if sizes is None or not _is_integer(leaf) else sizes.number(leaf)

    def _product(self, atoms: Monomial) -> isl.PwAff:
        """The product of atoms. Raises NotAffine."""
        if len(atoms) == 1:
            return self._atom(atoms[0])
        others = [atom for atom in atoms if not self._is_size(atom)]
        if self._parameters.sizes is not None and len(others) <= 1:
            return self._times_numbers(atoms, others)
        if not others:
            return self._size_parameter(atoms)
        for one in others:
            few = self._few_values(one)
            if few is None:
                continue
            rest = list(atoms)
            rest.remove(one)
            return self._case_by_case(self._atom(one), few, self._product(tuple(rest)))
        if len(others) == 1:
            return self._multiple(atoms, others[0])
        raise NotAffine(f"{self._text(atoms)} multiplies two values that are no numbers")

    def _multiple(self, atoms: Monomial, factor: int) -> isl.PwAff:
        """The product of an atom with sizes, as a value of its own. Raises NotAffine."""
        rest = list(atoms)
        rest.remove(factor)
        size = tuple(rest)
        value = self._uninterpreted(atoms)
        if atoms not in self.multiples:
            if not self._is_least({size: 1}):
                raise NotAffine(f"{self._text(size)} may be negative")
            self.multiples[atoms] = Multiple(self._atom(factor), value, self._product(size))
            self._note(self.multiples[atoms].bounds())
        return value

    def _uninterpreted(self, value: Monomial) -> isl.PwAff:
        """The dimension of a value that is not interpreted. Raises NotAffine."""
        number = self._parameters.values.dimension(value)
        if number is None:
            what = "multiplies two values that are no numbers"
            raise NotAffine(f"{self._text(value)} {what if len(value) > 1 else 'is not affine'}")
        return self._dimension(len(self._loops) + number)

    def _text(self, monomial: Monomial) -> str:
        return " * ".join(_short(self._atoms.exprs[atom]) for atom in monomial)

    def _times_numbers(self, atoms: Monomial, others: Sequence[int]) -> isl.PwAff:
        """The product of what is a number at the sizes that are sampled, and of one other atom."""
        found = self._atom(others[0]) if others else self._number(1)
        for atom in atoms:
            if atom not in others:
                found = found.mul(self._atom(atom))
        return found

    def _few_values(self, atom: int) -> range | None:
        """The values that an atom may have, where these are few."""
        value = self._atom(atom).intersect_domain(self._iterations.intersect(self.known))
        low, high = value.min_val(), value.max_val()
        if not low.is_int() or not high.is_int() or high.sub(low).to_python() >= _FEW:
            return None
        return range(int(low.to_python()), int(high.to_python()) + 1)

    def _case_by_case(self, first: isl.PwAff, values: range, second: isl.PwAff) -> isl.PwAff:
        """The product of two functions, the first of which has these values only."""
        found = isl.PwAff.empty(second.get_space())
        for value in values:
            number = isl.Val.int_from_si(self.space.get_ctx(), value)
            here = first.eq_set(self._number(value))
            found = found.union_add(second.scale_val(number).intersect_domain(here))
        return found

    def _is_size(self, atom: int) -> bool:
        """Whether an atom depends on no loop and on nothing that is loaded."""
        if atom not in self._sizes and self._is_of_sizes(self._atoms.exprs[atom]):
            self._sizes.add(atom)
        return atom in self._sizes

    def _is_of_sizes_only(self, polynomial: Polynomial) -> bool:
        return all(self._is_size(atom) for monomial in polynomial for atom in monomial)

    def _is_of_sizes(self, expr: Any, loops: Set[int] = frozenset()) -> bool:
        """Whether an expression depends on sizes only, and on these loops."""
        leaves = nodes(expr, tvm.ir.Var, tvm.ir.TensorLoad)
        # Arrays are variables too: what is loaded of them counts.
        values = [leaf for leaf in leaves if isinstance(leaf.ty, tvm.ir.PrimType)]
        return all(self._is_of_sizes_leaf(leaf, loops) for leaf in values)

    def _is_of_sizes_leaf(self, leaf: Any, loops: Set[int]) -> bool:
        meaning = self._meaning(leaf)
        if meaning is not None:
            return isinstance(meaning, int) or self._is_of_sizes(meaning, loops)
        is_variable = isinstance(leaf, tvm.ir.Var) and _is_integer(leaf)
        return is_variable and (hash(leaf) in loops or hash(leaf) not in self._loops)

    def _atom(self, atom: int) -> isl.PwAff:
        if atom not in self._values:
            try:
                self._values[atom] = self._atom_value(self._atoms.exprs[atom])
            except NotAffine:
                if not self._is_size(atom):
                    raise
                self._values[atom] = self._size_parameter((atom,))
        return self._values[atom]

    def _size_parameter(self, atoms: Monomial) -> isl.PwAff:
        """The parameter for a product of sizes, or for one that is not affine."""
        name = self._parameters.products.get(atoms)
        if name is None:
            first = self._atoms.exprs[atoms[0]]
            parts: list[Polynomial] = [{(atom,): 1} for atom in atoms] if len(atoms) > 1 else []
            if isinstance(first, tirx.Div | tirx.FloorDiv) and not parts:
                parts = [self.polynomial(end) for end in (first.a, first.b)]
            is_least = bool(parts) and all(self._is_least(part) for part in parts)
            name = self._parameters.name_of_product(atoms, is_least)
        return self._parameter(name)

    def _atom_value(self, expr: Any) -> isl.PwAff:
        if isinstance(expr, tvm.ir.Var):
            return self._variable(expr)
        if isinstance(expr, tirx.Min | tirx.Max):
            combine = isl.PwAff.min if isinstance(expr, tirx.Min) else isl.PwAff.max
            return combine(self.value(expr.a), self.value(expr.b))
        division = _DIVISIONS.get(type(expr))
        if division is not None:
            return self._division(expr, division)
        if isinstance(expr, tvm.ir.TensorLoad):
            raise NotAffine(f"{_short(expr)} is loaded from memory")
        if str(expr.ty) == "bool":
            holds = self.condition(expr)
            one = self._number(1).intersect_domain(holds)
            return one.union_add(self._number(0).intersect_domain(holds.complement()))
        raise NotAffine(f"{_short(expr)} is no sum of multiples of loops and sizes")

    def _variable(self, var: Any) -> isl.PwAff:
        dimension = self._loops.get(hash(var))
        if dimension is not None:
            return self._dimension(dimension)
        if not _is_integer(var):
            raise NotAffine(f"{var.name} is no integer")
        return self._parameter(self._parameters.name_of(var))

    def _dimension(self, number: int) -> isl.PwAff:
        local = isl.LocalSpace.from_space(self.space)
        return isl.PwAff.from_aff(isl.Aff.var_on_domain(local, isl.dim_type.set, number))

    # Divisions.

    def _division(self, expr: Any, division: Callable[..., isl.PwAff]) -> isl.PwAff:
        found = self.polynomial(expr.b)
        divisor = found.get((), 0)
        if divisor <= 0 or len(found) != 1:
            divisor = self._constant(found)
        if divisor <= 0:
            return self._division_by_size(expr, found)
        number = isl.Val.int_from_si(self.space.get_ctx(), divisor)
        value = self.value(expr.a)
        if division in (isl.PwAff.tdiv_q, isl.PwAff.tdiv_r):
            return division(value, self._number(divisor))
        return division(value, number)

    def _division_by_size(self, expr: Any, divisor: Polynomial) -> isl.PwAff:
        """A quotient as a value of its own, or the remainder. Raises NotAffine."""
        value = self.polynomial(expr.a)
        is_of_run = self._is_of_sizes_only(divisor) and not self._is_of_sizes_only(value)
        if not is_of_run or self._parameters.sizes is not None or not self._is_less({}, divisor):
            raise NotAffine(f"{_short(expr)} divides by what is no positive number")
        # Div and Mod divide towards zero.
        if not isinstance(expr, tirx.FloorDiv | tirx.FloorMod) and not self._is_least(value):
            raise NotAffine(f"{_short(expr)} divides what may be negative")
        quotient = self._atoms.number(tirx.FloorDiv(expr.a, expr.b))
        is_known = quotient in self._values
        found = self._values[quotient] = self._uninterpreted((quotient,))
        divided, whole = self.value_of(value), self.value_of(product({(quotient,): 1}, divisor))
        if not is_known:
            self._note(divided.ge_set(whole))
            self._note(divided.lt_set(whole.add(self.value_of(divisor))))
        is_quotient = isinstance(expr, tirx.FloorDiv | tirx.Div)
        return found if is_quotient else divided.sub(whole)

    def _constant(self, polynomial: Polynomial) -> int:
        """The number that a polynomial is, with the sizes that are sampled; 0 if it is none."""
        if self._parameters.sizes is None:
            return 0
        value = self.value_of(polynomial)
        low, high = value.min_val(), value.max_val()
        return int(low.to_python()) if low.is_int() and low.eq(high) else 0

    def _divided(self, expr: Any, value: Polynomial, divisor: Polynomial) -> Polynomial | None:
        """A quotient or remainder by a symbolic size, where a polynomial is all that is left."""
        if set(divisor) <= {()}:
            return None
        divisor, is_positive = self._at_least_one(divisor)
        quotient, remainder = divided(value, divisor)
        if remainder or not is_positive:
            within = self._is_least(remainder) and self._is_less(remainder, divisor)
            if not within:
                return None
        # Div and Mod divide towards zero.
        rounds_down = isinstance(expr, tirx.FloorDiv | tirx.FloorMod)
        if not rounds_down and not self._is_least(quotient):
            return None
        return quotient if isinstance(expr, tirx.FloorDiv | tirx.Div) else remainder

    def _at_least_one(self, divisor: Polynomial) -> tuple[Polynomial, bool]:
        """``max(size, 1)`` as the size where that is at least 1; whether that is known."""
        one = [self._atoms.exprs[atoms[0]] for atoms in divisor if len(atoms) == 1]
        if len(divisor) == 1 and one and isinstance(one[0], tirx.Max) and _is_one(one[0].b):
            size = self.polynomial(one[0].a)
            return (size, True) if self._is_less({}, size) else (divisor, True)
        return divisor, False

    def _is_least(self, polynomial: Polynomial) -> bool:
        """Whether a polynomial is surely not negative."""
        if all(factor > 0 for factor in polynomial.values()):
            atoms = {atom for monomial in polynomial for atom in monomial}
            if all(self._is_less(constant(-1), {(atom,): 1}) for atom in atoms):
                return True
        return self._is_less(constant(-1), polynomial)

    def _is_less(self, first: Polynomial, second: Polynomial) -> bool:
        """Whether one polynomial is surely less than another."""
        try:
            holds = self.value_of(first).lt_set(self.value_of(second))
        except NotAffine:
            return self._is_less_in_digits(first, second)
        iterations = self._iterations.intersect(self.known).align_params(holds.get_space())
        return self._parameters.possible(iterations).is_subset(holds)

    def _is_less_in_digits(self, first: Polynomial, second: Polynomial) -> bool:
        """Whether ``row * length + column`` is surely less than ``rows * length``."""
        if len(second) != 1:
            return False
        ((atoms, factor),) = second.items()
        for place, atom in enumerate(atoms if len(atoms) > 1 else ()):
            size: Polynomial = {(atom,): 1}
            rows, column = divided(first, size)
            rest = {atoms[:place] + atoms[place + 1 :]: factor}
            within = self._is_least(column) and self._is_less(column, size)
            if rows and within and self._is_less(rows, rest):
                return True
        return False


# Of so many values of a loop, each is a case of its own where the loop is multiplied by a size.
_FEW = 16


def _is_start_of_tile(start: tirx.Min) -> bool:
    """Whether a minimum is a multiple of a number, or the last place that a tile may have."""
    counted = isinstance(start.a, tirx.Mul) and isinstance(start.a.b, tirx.IntImm)
    # The last place is a number, or an open size without a tile.
    last = start.b.b if isinstance(start.b, tirx.Sub) else start.b
    return counted and isinstance(last, tirx.IntImm)


def _is_integer(var: Any) -> bool:
    return isinstance(var.ty, tvm.ir.PrimType) and "int" in str(var.ty)


def _is_one(expr: Any) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr.value) == 1


def _short(expr: Any) -> str:
    text = " ".join(str(expr).split())
    # The script of a load declares its buffer first.
    return text if len(text) <= 60 else text[-60:]


Element: TypeAlias = tuple[int, tuple[int, ...]]
"""An element of an array: the hash of the array, and numbers for indices."""


def element_of(access: Any) -> Element | None:
    """The element that a load or a store is of; None if its indices are no numbers."""
    buffer = access.source if isinstance(access, tvm.ir.TensorLoad) else access.buffer
    indices = [_number_of(index) for index in access.indices]
    numbers = tuple(index for index in indices if index is not None)
    return (hash(buffer), numbers) if len(numbers) == len(indices) else None


def _number_of(expr: Any) -> int | None:
    if isinstance(expr, int):
        return expr
    return int(expr.value) if isinstance(expr, tirx.IntImm) else None


def _operator(call: tvm.ir.Call) -> str:
    return str(getattr(call.op, "name", ""))


# Div and Mod of TIR divide towards zero, as those of C do.
_DIVISIONS: dict[type, Callable[..., isl.PwAff]] = {
    tirx.FloorDiv: lambda value, number: value.scale_down_val(number).floor(),
    tirx.FloorMod: isl.PwAff.mod_val,
    tirx.Div: isl.PwAff.tdiv_q,
    tirx.Mod: isl.PwAff.tdiv_r,
}

_COMPARISONS: dict[type, Callable[[isl.PwAff, isl.PwAff], isl.Set]] = {
    tirx.LT: isl.PwAff.lt_set,
    tirx.LE: isl.PwAff.le_set,
    tirx.GT: isl.PwAff.gt_set,
    tirx.GE: isl.PwAff.ge_set,
    tirx.EQ: isl.PwAff.eq_set,
    tirx.NE: isl.PwAff.ne_set,
}
