"""PTX of compute capability 9: barriers in shared memory, TMA copies, products of warpgroups."""

import re

from cuda_emulation.operands import ELEMENTS, FLOATS, Operands, Rule, address, array, listed

_MBARRIER = r"(?:\.(?:release|acquire|relaxed))?(?:\.(?:cta|cluster))?\.shared(?:::cta)?\.b64"


def _sunk(operands: Operands) -> Operands:
    """Without the token that an arrival may return; only ``_`` is known."""
    return operands[1:] if operands[0].strip() == "_" else operands


def _arrive(match: re.Match[str], operands: Operands, line: int) -> str:
    operands = _sunk(operands)
    count = operands[1] if len(operands) > 1 else "1"
    return f"emu::arrive({line}, {address(operands[0])}, {count}, 0);"


def _arrive_expecting(match: re.Match[str], operands: Operands, line: int) -> str:
    operands = _sunk(operands)
    return f"emu::arrive({line}, {address(operands[0])}, 1, {operands[1]});"


def _wait(match: re.Match[str], operands: Operands, line: int) -> str:
    place, parity = address(operands[1]), operands[2]
    return f"{operands[0]} = emu::wait_barrier({line}, {place}, {parity});"


def _copy_tensor(match: re.Match[str], operands: Operands, line: int) -> str:
    inner = operands[1].strip().removeprefix("[").removesuffix("]")
    tensor_map, _, coordinates = inner.partition(",")
    first = ", ".join(f"(int)({c})" for c in listed(coordinates))
    to, barrier = address(operands[0]), address(operands[2])
    blocks = operands[3] if match["several"] else "0"
    call = (
        f"emu::copy_tensor({line}, {to}, emu::ptx::address({tensor_map}), at, "
        f"{match['rank']}, {barrier}, {blocks});"
    )
    return f"{{ const int at[] = {{{first}}}; {call} }}"


def _copy_bulk(match: re.Match[str], operands: Operands, line: int) -> str:
    to, origin, barrier = (address(operands[i]) for i in (0, 1, 3))
    return f"emu::copy_bulk({line}, {to}, {origin}, {operands[2]}, {barrier});"


def _multiply(match: re.Match[str], operands: Operands, line: int) -> str:
    results, a, b, accumulate = listed(operands[0]), operands[1], operands[2], operands[3]
    flags = [*operands[4:], *["1"] * 2][: max(2, len(operands) - 4)]
    negate_a, negate_b, *across = (*flags, "0", "0")
    in_registers = a.strip().startswith("{")
    if in_registers:  # only B has a flag then
        across = ["0", *across]
    types = ", ".join(f"emu::Element::{ELEMENTS[match[name]]}" for name in ("d", "a", "b"))
    turned = f"{across[0]} != 0, {across[1]} != 0"
    product = (
        f"static const emu::WarpgroupGemm product = {{{match['columns']}, {match['depth']}, "
        f"{types}, {str(in_registers).lower()}, {negate_a} == -1, {negate_b} == -1, {turned}}};"
    )
    places = ", ".join(f"(uint32_t*)&({register})" for register in results)
    registers = array("ra", listed(a) if in_registers else ["0"])
    first = "0" if in_registers else f"(uint64_t)({a})"
    call = (
        f"emu::multiply_group({line}, product, d, ra, {first}, (uint64_t)({b}), "
        f"({accumulate}) != 0);"
    )
    return f"{{ {product} uint32_t* const d[] = {{{places}}}; {registers} {call} }}"


RULES: list[Rule] = [
    (
        rf"mbarrier\.init{_MBARRIER}",
        lambda m, o, line: f"emu::init_barrier({line}, {address(o[0])}, {o[1]});",
    ),
    (
        rf"mbarrier\.inval{_MBARRIER}",
        lambda m, o, line: f"emu::invalidate_barrier({line}, {address(o[0])});",
    ),
    (rf"mbarrier\.arrive{_MBARRIER}", _arrive),
    (
        r"mbarrier\.arrive(?:\.release\.cluster)?\.shared::cluster\.b64",
        lambda m, o, line: f"emu::arrive_anywhere({line}, {address(_sunk(o)[0])}, 1);",
    ),
    (
        r"mapa\.shared::cluster\.u32",
        lambda m, o, line: f"{o[0]} = emu::address_in_block({o[1]}, {o[2]});",
    ),
    (
        r"barrier\.cluster\.arrive(?:\.release|\.relaxed)?(?:\.aligned)?",
        lambda m, o, line: f"emu::arrive_cluster({line});",
    ),
    (
        r"barrier\.cluster\.wait(?:\.acquire)?(?:\.aligned)?",
        lambda m, o, line: f"emu::wait_cluster({line});",
    ),
    (rf"mbarrier\.arrive\.expect_tx{_MBARRIER}", _arrive_expecting),
    (
        rf"mbarrier\.expect_tx{_MBARRIER}",
        lambda m, o, line: f"emu::arrive({line}, {address(o[0])}, 0, {o[1]});",
    ),
    (rf"mbarrier\.(?:try|test)_wait\.parity{_MBARRIER}", _wait),
    (
        r"cp\.async\.bulk\.tensor\.(?P<rank>[1-5])d\.shared::(?:cluster|cta)\.global(?:\.tile)?"
        r"\.mbarrier::complete_tx::bytes(?P<several>\.multicast::cluster)?(?:\.L2::cache_hint)?",
        _copy_tensor,
    ),
    (
        r"cp\.async\.bulk\.shared::(?:cluster|cta)\.global\.mbarrier::complete_tx::bytes"
        r"(?:\.L2::cache_hint)?",
        _copy_bulk,
    ),
    (
        r"wgmma\.mma_async\.sync\.aligned\.m64n(?P<columns>\d+)k(?P<depth>\d+)"
        rf"\.(?P<d>f16|f32|s32)\.(?P<a>{FLOATS})\.(?P<b>{FLOATS})",
        _multiply,
    ),
    (r"wgmma\.fence\.sync\.aligned", lambda m, o, line: f"emu::fence_group({line});"),
    (r"wgmma\.commit_group\.sync\.aligned", lambda m, o, line: f"emu::commit_group({line});"),
    (
        r"wgmma\.wait_group\.sync\.aligned",
        lambda m, o, line: f"emu::wait_group({line}, {o[0]});",
    ),
    (r"fence\.proxy\.async.*", lambda m, o, line: "emu::proxy_fence();"),
    (r"setmaxnreg\..*|griddepcontrol\..*", lambda m, o, line: ""),
    (
        r"elect\.sync",
        lambda m, o, line: (
            f"{o[0].rpartition('|')[2]} = emu::lane_index() == __builtin_ctz({o[1]});"
        ),
    ),
]
