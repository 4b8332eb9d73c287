"""PTX instructions as C++ statements; what each does is said in the PTX ISA under its name."""

import re

from cuda_emulation.hopper_instructions import RULES as HOPPER_RULES
from cuda_emulation.operands import (
    C_TYPES,
    ELEMENTS,
    FLOATS,
    Operands,
    Rule,
    Translate,
    address,
    array,
    listed,
    put,
)

_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _register(match: re.Match[str], operands: Operands, line: int) -> str:
    return f"{C_TYPES[match['type']]} {', '.join(operands)};"


def _ldmatrix(match: re.Match[str], operands: Operands, line: int) -> str:
    to = listed(operands[0])
    transposed = str(match["trans"] is not None).lower()
    load = f"emu::load_matrices({line}, {match['count']}, {transposed}, {address(operands[1])}, l);"
    return f"{{ uint32_t l[{len(to)}]; {load} {put('l', to)} }}"


def _stmatrix(match: re.Match[str], operands: Operands, line: int) -> str:
    transposed = str(match["trans"] is not None).lower()
    store = (
        f"emu::store_matrices({line}, {match['count']}, {transposed}, {address(operands[0])}, l);"
    )
    return f"{{ {array('l', listed(operands[1]))} {store} }}"


def _mma(match: re.Match[str], operands: Operands, line: int) -> str:
    d, a, b, c = (listed(operand) for operand in operands)
    types = ", ".join(f"emu::Element::{ELEMENTS[match[n]]}" for n in ("d", "a", "b", "c"))
    arrays = " ".join(array(name, regs) for name, regs in (("ra", a), ("rb", b), ("rc", c)))
    product = f"static const emu::Product product = {{16, 8, {match['depth']}, {types}}};"
    call = f"emu::multiply_matrices({line}, product, ra, rb, rc, rd);"
    return f"{{ {product} {arrays} uint32_t rd[{len(d)}]; {call} {put('rd', d)} }}"


def _cp_async(match: re.Match[str], operands: Operands, line: int) -> str:
    to, origin = address(operands[0]), address(operands[1])
    size = operands[2]
    copied = operands[3] if len(operands) > 3 else size
    check = 'static_assert((SIZE) == 16, "cp.async.cg copies 16 bytes");'.replace("SIZE", size)
    check = check if match["cache"] == "cg" else ""
    return f"{check} emu::copy_async({line}, {to}, {origin}, {size}, {copied});"


def _store(match: re.Match[str], operands: Operands, line: int) -> str:
    registers, c_type = listed(operands[1]), C_TYPES[match["type"]]
    values = ", ".join(f"({c_type})({register})" for register in registers)
    call = f"emu::store_shared({line}, {address(operands[0])}, v, sizeof v);"
    return f"{{ {c_type} v[] = {{{values}}}; {call} }}"


def _load(match: re.Match[str], operands: Operands, line: int) -> str:
    registers, c_type = listed(operands[0]), C_TYPES[match["type"]]
    call = f"emu::load_shared({line}, v, {address(operands[1])}, sizeof v);"
    puts = " ".join(f"{register} = v[{i}];" for i, register in enumerate(registers))
    return f"{{ {c_type} v[{len(registers)}]; {call} {puts} }}"


def _rounded_pair(match: re.Match[str], operands: Operands, line: int) -> str:
    """PTX ISA, "cvt": of two sources the first becomes the upper half."""
    function = {"f16x2": "float_to_half", "bf16x2": "float_to_bfloat16"}[match["type"]]
    high, low = (f"uint32_t(emu::{function}({operand}))" for operand in operands[1:3])
    return f"emu::ptx::put({operands[0]}, {high} << 16 | {low});"


def _setp(match: re.Match[str], operands: Operands, line: int) -> str:
    c_type = C_TYPES[match["type"]]
    left, right = (f"({c_type})({operand})" for operand in operands[1:3])
    return f"{operands[0]} = {left} {_COMPARISONS[match['how']]} {right};"


def _assign(form: str) -> Translate:
    """``form`` with {0}, {1}, ... for the operands."""

    def translate(match: re.Match[str], operands: Operands, line: int) -> str:
        c_type = C_TYPES[match["type"]]
        typed = [operands[0], *(f"({c_type})({operand})" for operand in operands[1:])]
        return form.format(*typed)

    return translate


def _fixed(form: str) -> Translate:
    return lambda match, operands, line: form.format(*operands, line=line)


_TYPE = r"\.(?P<type>pred|[busf](?:8|16|32|64))"
_SHARED = r"\.shared(?:::cta)?"
_RULES: list[Rule] = [
    (rf"\.reg{_TYPE}", _register),
    (
        rf"ldmatrix\.sync\.aligned\.m8n8\.x(?P<count>[124])(?P<trans>\.trans)?{_SHARED}\.b16",
        _ldmatrix,
    ),
    (
        rf"stmatrix\.sync\.aligned\.m8n8\.x(?P<count>[124])(?P<trans>\.trans)?{_SHARED}\.b16",
        _stmatrix,
    ),
    (
        r"mma\.sync\.aligned\.m16n8k(?P<depth>4|8|16|32)\.row\.col"
        rf"\.(?P<d>{FLOATS})\.(?P<a>{FLOATS})\.(?P<b>{FLOATS})\.(?P<c>{FLOATS})",
        _mma,
    ),
    (rf"cp\.async\.(?P<cache>ca|cg){_SHARED}\.global(?:\.L2::\d+B)?", _cp_async),
    (r"cp\.async\.commit_group", _fixed("emu::commit_copies();")),
    (r"cp\.async\.wait_group", _fixed("emu::wait_copies({0});")),
    (r"cp\.async\.wait_all", _fixed("emu::commit_copies(); emu::wait_copies(0);")),
    (rf"st(?:\.volatile)?{_SHARED}(?:\.v[24])?{_TYPE}", _store),
    (rf"ld(?:\.volatile)?{_SHARED}(?:\.v[24])?{_TYPE}", _load),
    (rf"setp\.(?P<how>eq|ne|lt|le|gt|ge){_TYPE}", _setp),
    (r"cvt\.rn\.(?P<type>f16x2|bf16x2)\.f32", _rounded_pair),
    (rf"mov{_TYPE}", _assign("{0} = {1};")),
    (rf"add{_TYPE}", _assign("{0} = {1} + {2};")),
    (rf"selp{_TYPE}", lambda m, o, line: f"{o[0]} = ({o[3]}) ? ({o[1]}) : ({o[2]});"),
    (r"cvta\.to\.shared\.u64", _fixed("{0} = emu::sharedaddress((const void*)({1}));")),
    (r"cvt\.u32\.u64", _fixed("{0} = (uint32_t)({1});")),
    (
        r"cvt\.rna\.tf32\.f32",
        _fixed("emu::ptx::put({0}, emu::nearest_tf32(emu::ptx::bits({1})));"),
    ),
    (r"(?:bar|barrier)\.sync(?:\.aligned)?", lambda m, o, line: _bar(o, line, "true")),
    (r"(?:bar|barrier)\.arrive(?:\.aligned)?", lambda m, o, line: _bar(o, line, "false")),
    (r"membar\.(?:gl|sys)|fence\.(?:acq_rel|sc)\.(?:gpu|sys)", _fixed("emu::global_fence();")),
    (r"fence\..*|membar\..*|prefetch.*", _fixed("")),
    (
        r"dp4a\.(?P<first>[us])32\.(?P<second>[us])32",
        lambda m, o, line: (
            f"{o[0]} = emu::dot_of_bytes<{'u' * (m['first'] == 'u')}int8_t, "
            f"{'u' * (m['second'] == 'u')}int8_t>({o[1]}, {o[2]}, {o[3]});"
        ),
    ),
]
_INSTRUCTIONS = [
    (re.compile(pattern), translate) for pattern, translate in (*HOPPER_RULES, *_RULES)
]


def _bar(operands: Operands, line: int, waits: str) -> str:
    if len(operands) == 1:
        # All threads of the block.
        return f"emu::named_barrier({line}, {operands[0]}, 0, {waits});"
    return f"emu::named_barrier({line}, {operands[0]}, {operands[1]}, {waits});"


def translated_instruction(opcode: str, operands: Operands, line: int) -> str | None:
    """The C++ statement of an instruction; None where it is not known."""
    for pattern, translate in _INSTRUCTIONS:
        match = pattern.fullmatch(opcode)
        if match is not None:
            return translate(match, operands, line)
    return None
