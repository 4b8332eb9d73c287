"""Runs programs of xDSL's csl dialect on NumPy: all PEs of a grid, with their messages.

Of the dialect, what tvm_ext/wafer/csl writes; any other operation is an error. A message is under
way for a while: where it will arrive are NaNs meanwhile, and the order in which tasks run and
messages arrive is drawn at random.
"""

import re

import numpy as np
from csl_values import DTYPES, InvalidProgram, Pointer, Vector, checked, instruction

_COMPARISONS = {0: "__eq__", 1: "__ne__", 2: "__lt__"}
_FLOAT_COMPARISONS = {
    1: np.equal,
    2: np.greater,
    3: np.greater_equal,
    4: np.less,
    5: np.less_equal,
    13: np.not_equal,
}
_INTEGERS = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divui": lambda a, b: a // b,
    "arith.remui": lambda a, b: a % b,
}
_FLOATS = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
}


class Returned(Exception):
    """The end of a function."""


class Scope:
    """Values of one PE's program, or of the layout; inner operations see outer values."""

    def __init__(self, machine, modules, parameters):
        self.values = {}
        self.functions = {}
        self.tasks = {}
        self.symbols = {}
        self._machine = machine
        self._modules = modules
        self._parameters = parameters

    def run(self, block):
        for op in block.ops:
            name = op.name.replace(".", "_")
            method = getattr(self, f"_{name}", None)
            if method is not None:
                method(op)
            elif op.name in _INTEGERS:
                self._set(op, checked(_INTEGERS[op.name](*self._operands(op))))
            elif op.name in _FLOATS:
                left, right = self._operands(op)
                self._set(op, type(left)(_FLOATS[op.name](left, right)))
            elif op.name.startswith("csl.f"):
                target, *operands = self._operands(op.ops)
                instruction(op.name.removeprefix("csl."), target, operands)
            else:
                raise InvalidProgram(f"{op.name} is not known")

    def call(self, name):
        try:
            self.run(self.functions[name].body.block)
        except Returned:
            return
        raise InvalidProgram(f"{name} does not return")

    def _operands(self, op):
        values = op.operands if hasattr(op, "operands") else op
        return [self.values[value] for value in values]

    def _set(self, op, value):
        self.values[op.results[0]] = value

    def _arith_constant(self, op):
        kind = str(op.result.type)
        number = op.value.value.data
        self._set(op, DTYPES[kind](number) if kind in DTYPES else number)

    def _arith_cmpi(self, op):
        left, right = self._operands(op)
        self._set(op, getattr(left, _COMPARISONS[op.predicate.value.data])(right))

    def _arith_cmpf(self, op):
        self._set(op, bool(_FLOAT_COMPARISONS[op.predicate.value.data](*self._operands(op))))

    def _arith_select(self, op):
        condition, left, right = self._operands(op)
        self._set(op, left if condition else right)

    def _arith_index_cast(self, op):
        self._set(op, self._operands(op)[0])

    def _arith_extf(self, op):
        self._set(op, np.float32(self._operands(op)[0]))

    def _arith_truncf(self, op):
        self._set(op, np.float16(self._operands(op)[0]))

    def _memref_load(self, op):
        array, place = self._operands(op)
        self._set(op, array[self._inside(array, place)])

    def _memref_store(self, op):
        value, array, place = self._operands(op)
        array[self._inside(array, place)] = value

    def _inside(self, array, place):
        if not 0 <= place < array.size:
            raise InvalidProgram(f"element {place} of an array of {array.size}")
        return place

    def _scf_for(self, op):
        start, stop, step = self._operands(op)[:3]
        for value in range(start, stop, step):
            self.values[op.body.block.args[0]] = value
            self.run(op.body.block)

    def _scf_if(self, op):
        region = op.true_region if self.values[op.cond] else op.false_region
        self.run(region.block)

    def _scf_yield(self, op):
        pass

    def _csl_param(self, op):
        self._set(op, self._parameters[op.param_name.data])

    def _csl_import_module(self, op):
        settings = self.values[op.params] if op.params is not None else {}
        self._set(op, self._modules(op.module.data, settings))

    def _csl_const_struct(self, op):
        fields = [field.data for field in op.ssa_fields.data]
        found = dict(zip(fields, self._operands(op), strict=True))
        for name, numbers in (op.items.data if op.items is not None else {}).items():
            found[name] = tuple(int(value) for value in numbers.get_values())
        self._set(op, found)

    def _csl_member_access(self, op):
        self._set(op, self.values[op.struct][op.field.data])

    def _csl_member_call(self, op):
        module, *arguments = self._operands(op)
        result = module[op.field.data](*arguments)
        if op.results:
            self._set(op, result)

    def _csl_zeros(self, op):
        (size,) = op.result.type.get_shape()
        self._set(op, np.zeros(size, DTYPES[str(op.result.type.element_type)]))

    def _csl_variable(self, op):
        self._set(op, [op.default.value.data])

    def _csl_load_var(self, op):
        self._set(op, self._operands(op)[0][0])

    def _csl_store_var(self, op):
        variable, value = self._operands(op)
        variable[0] = value

    def _csl_addressof(self, op):
        self._set(op, Pointer(self._operands(op)[0]))

    def _csl_ptrcast(self, op):
        self._set(op, self._operands(op)[0])

    def _csl_mlir_signedness_cast(self, op):
        if self._operands(op)[0] < 0:
            raise InvalidProgram("a negative number becomes one without sign")
        self._set(op, self._operands(op)[0])

    def _csl_get_mem_dsd(self, op):
        array, length = self._operands(op)
        (access,) = op.tensor_access.data.results
        first, second = (access.eval([place], []) for place in (0, 1))
        if not -128 <= second - first <= 127:
            raise InvalidProgram(f"a stride of {second - first} elements")
        self._set(op, Vector(array, checked(first), second - first, length))

    def _csl_increment_dsd_offset(self, op):
        vector, offset = self._operands(op)
        if DTYPES[str(op.elem_type)] != vector.array.dtype:
            raise InvalidProgram("a descriptor moves on by elements of another type")
        self._set(op, vector.moved(offset))

    def _csl_func(self, op):
        self.functions[op.sym_name.data] = op

    def _csl_task(self, op):
        self.functions[op.sym_name.data] = op
        self.tasks[op.id.value.data] = op.sym_name.data

    def _csl_call(self, op):
        self.call(op.callee.string_value())

    def _csl_activate(self, op):
        self._machine.activate(self, op.id.value.data)

    def _csl_return(self, op):
        raise Returned

    def _csl_export(self, op):
        if op.get_name() in self.symbols:
            raise InvalidProgram(f"{op.get_name()} is exported twice")
        if op.value is not None:
            self.symbols[op.get_name()] = self.values[op.value].array

    def _csl_layout(self, op):
        self.run(op.body.block)

    def _csl_set_rectangle(self, op):
        self._machine.grid = tuple(self._operands(op))

    def _csl_set_tile_code(self, op):
        x, y, parameters = self._operands(op)
        self._machine.place(x, y, op.file.data, parameters)


def task_numbers(text):
    """The constants of collectives.csl; no task may have the number of another one."""
    found = re.findall(r"const (\w+) : local_task_id = @get_local_task_id\((\d+)\);", text)
    everything = re.findall(r"@get_local_task_id\((\d+)\)", text)
    if len(set(everything)) != len(everything):
        raise InvalidProgram("two tasks have one number")
    return {name: int(number) for name, number in found}
