"""Integer expressions of TIR as quasi-affine functions of isl, and conditions as sets.

A quasi-affine function is a sum of multiples of loop variables and symbolic sizes, with divisions
and remainders by numbers. What is none raises NotAffine, which says why.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import islpy as isl
import tvm
from tvm import tirx

from tvm_ext.tir_schedules.analysis.buffer_access import is_conditional, nodes


class NotAffine(Exception):
    """An expression is no quasi-affine function of loops and sizes; ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


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

    Attributes
    ----------
    variables : dict[str, tirx.Var]
        By the name that isl has for them.
    sizes : SampledSizes or None
        The numbers that stand for the symbolic sizes; None where these stay symbolic.
    """

    variables: dict[str, Any] = field(default_factory=dict)
    sizes: "SampledSizes | None" = None
    _names: dict[int, str] = field(default_factory=dict)

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
        # What is computed once is used by many indices: expressions stay alive with their values.
        self._known: dict[int, tuple[Any, isl.PwAff]] = {}

    def value(self, expr: Any) -> isl.PwAff:
        """``expr`` as a function of the loops. Raises NotAffine."""
        known = self._known.get(hash(expr))
        if known is not None and known[0] is expr:
            return known[1]
        found = self._value(expr)
        self._known[hash(expr)] = (expr, found)
        return found

    def _value(self, expr: Any) -> isl.PwAff:
        if isinstance(expr, int):
            return self._number(expr)
        if isinstance(expr, tirx.IntImm):
            return self._number(int(expr.value))
        if isinstance(expr, tvm.ir.Var):
            return self._variable(expr)
        if isinstance(expr, tirx.Cast):
            return self._cast(expr)
        simple = _VALUES.get(type(expr))
        if simple is not None:
            return simple(self.value(expr.a), self.value(expr.b))
        if isinstance(expr, tirx.Mul):
            return self._product(expr)
        division = _DIVISIONS.get(type(expr))
        if division is not None:
            return self._division(expr, division)
        if isinstance(expr, tvm.ir.TensorLoad) and element_of(expr) in self._stored:
            return self.value(self._stored[element_of(expr)])
        return self._selected(expr)

    def condition(self, expr: Any) -> isl.Set:
        """The iterations for which ``expr`` holds. Raises NotAffine."""
        if isinstance(expr, tirx.IntImm):
            whole = isl.Set.universe(self.space)
            return whole if int(expr.value) else isl.Set.empty(self.space)
        comparison = _COMPARISONS.get(type(expr))
        if comparison is not None:
            return comparison(self.value(expr.a), self.value(expr.b))
        if isinstance(expr, tirx.And):
            return self.condition(expr.a).intersect(self.condition(expr.b))
        if isinstance(expr, tirx.Or):
            return self.condition(expr.a).union(self.condition(expr.b))
        if isinstance(expr, tirx.Not):
            return self.condition(expr.a).complement()
        if isinstance(expr, tvm.ir.Call) and _operator(expr).endswith("likely"):
            return self.condition(expr.args[0])
        raise NotAffine(f"the condition {_short(expr)} is no comparison of loops and sizes")

    def index(self, expr: Any) -> isl.Map:
        """The positions that an index takes, several where it is a vector. Raises NotAffine."""
        if not isinstance(expr, tirx.Ramp):
            return isl.Map.from_pw_aff(self.value(expr))
        stride, lanes = _number_of(expr.stride), _number_of(expr.lanes)
        if stride is None or lanes is None:
            raise NotAffine(f"the vector {_short(expr)} has no known stride")
        step = isl.Map.read_from_str(
            self.space.get_ctx(),
            f"{{ [b] -> [v] : exists l : v = b + {stride}l and 0 <= l < {lanes} }}",
        )
        return isl.Map.from_pw_aff(self.value(expr.base)).apply_range(step)

    def _cast(self, expr: tirx.Cast) -> isl.PwAff:
        if str(expr.value.ty) == "bool":
            holds = self.condition(expr.value)
            one = self._number(1).intersect_domain(holds)
            return one.union_add(self._number(0).intersect_domain(holds.complement()))
        if nodes(expr, tvm.ir.TensorLoad):
            raise NotAffine(f"{_short(expr)} is loaded from memory")
        return self.value(expr.value)

    def _number(self, value: int) -> isl.PwAff:
        number = isl.Val.int_from_si(self.space.get_ctx(), value)
        return isl.PwAff.from_aff(isl.Aff.val_on_domain_space(self.space, number))

    def _variable(self, var: Any) -> isl.PwAff:
        dimension = self._loops.get(hash(var))
        if dimension is not None:
            local = isl.LocalSpace.from_space(self.space)
            return isl.PwAff.from_aff(isl.Aff.var_on_domain(local, isl.dim_type.set, dimension))
        if hash(var) in self._bound:
            return self.value(self._bound[hash(var)])
        if not isinstance(var.ty, tvm.ir.PrimType) or "int" not in str(var.ty):
            raise NotAffine(f"{var.name} is no integer")
        if self._parameters.sizes is not None:
            return self._number(self._parameters.sizes.number(var))
        identifier = isl.Id(self._parameters.name_of(var), context=self.space.get_ctx())
        space = self.space.add_param_id(identifier)
        return isl.PwAff.from_aff(isl.Aff.param_on_domain_space_id(space, identifier))

    def _product(self, expr: Any) -> isl.PwAff:
        left, right = self.value(expr.a), self.value(expr.b)
        if not left.is_cst() and not right.is_cst():
            raise NotAffine(f"{_short(expr)} multiplies two values that are no numbers")
        return left.mul(right)

    def _division(self, expr: Any, division: Callable[..., isl.PwAff]) -> isl.PwAff:
        divisor = self._constant(expr.b)
        if divisor is None or divisor <= 0:
            raise NotAffine(f"{_short(expr)} divides by what is no positive number")
        number = isl.Val.int_from_si(self.space.get_ctx(), divisor)
        value = self.value(expr.a)
        if division in (isl.PwAff.tdiv_q, isl.PwAff.tdiv_r):
            return division(value, self._number(divisor))
        return division(value, number)

    def _constant(self, expr: Any) -> int | None:
        """The number that ``expr`` is, with the sizes that are sampled; None if it is none."""
        number = _number_of(expr)
        if number is not None or self._parameters.sizes is None:
            return number
        value = self.value(expr)
        low, high = value.min_val(), value.max_val()
        return int(low.to_python()) if low.is_int() and low.eq(high) else None

    def _selected(self, expr: Any) -> isl.PwAff:
        if isinstance(expr, tirx.Select):
            parts = (expr.condition, expr.true_value, expr.false_value)
        elif is_conditional(expr):
            parts = tuple(expr.args)
        elif isinstance(expr, tvm.ir.TensorLoad):
            raise NotAffine(f"{_short(expr)} is loaded from memory")
        else:
            raise NotAffine(f"{_short(expr)} is no sum of multiples of loops and sizes")
        holds = self.condition(parts[0])
        first = self.value(parts[1]).intersect_domain(holds)
        return first.union_add(self.value(parts[2]).intersect_domain(holds.complement()))


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


_VALUES: dict[type, Callable[[isl.PwAff, isl.PwAff], isl.PwAff]] = {
    tirx.Add: isl.PwAff.add,
    tirx.Sub: isl.PwAff.sub,
    tirx.Min: isl.PwAff.min,
    tirx.Max: isl.PwAff.max,
}

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
