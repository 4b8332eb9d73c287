"""Loops put into isl's tree of a schedule, under marks that say how they run."""

import itertools
from collections.abc import Sequence

import islpy as isl

from tvm_ext.polyhedral.bands import Loop


def with_loops(below: isl.ScheduleNode, loops: Sequence[Loop]) -> isl.ScheduleNode:
    """A band for each of ``loops`` above a node, under its mark; one for those over registers."""
    registers = [one for one in loops if one.is_over_registers]
    for number in range(len(loops) - 1, -1, -1):
        if not loops[number].is_over_registers:
            below = _with_loop(below, loops[number])
        elif loops[number] is registers[0]:
            below = _with_register_tiles(below, registers, [one.tile for one in loops if one.tile])
    return below


def _with_loop(below: isl.ScheduleNode, one: Loop) -> isl.ScheduleNode:
    below = below.insert_partial_schedule(isl.MultiUnionPwAff.from_union_pw_aff(one.function))
    if one.is_separated:
        below = below.band_member_set_ast_loop_type(0, isl.ast_loop_type.separate)
    return _marked(below, one.mark) if one.mark else below


def _marked(below: isl.ScheduleNode, mark: str) -> isl.ScheduleNode:
    name = f"{mark}:{next(_NUMBERS)}"
    return below.insert_mark(isl.Id(name, context=below.get_ctx()))


def _with_register_tiles(
    below: isl.ScheduleNode, loops: Sequence[Loop], tile: Sequence[int]
) -> isl.ScheduleNode:
    """A band over tiles of registers; its mark says how long a whole tile is along each loop."""
    functions = isl.UnionPwAffList.alloc(below.get_ctx(), len(loops))
    for one in loops:
        functions = functions.add(one.function)
    space = isl.Space.set_alloc(below.get_ctx(), 0, len(loops))
    partial = isl.MultiUnionPwAff.from_union_pw_aff_list(space, functions)
    sizes = "x".join(str(size) for size in tile)
    return _marked(below.insert_partial_schedule(partial), f"{REGISTERS}{sizes}")


_NUMBERS = itertools.count()

# Begins the mark of a band over tiles of registers.
REGISTERS = "registers "


def with_whole_tiles(tree: isl.Schedule) -> isl.Schedule:
    """``tree`` with code of its own for whole tiles of registers, whose loops are fixed."""

    def isolated(node: isl.ScheduleNode) -> isl.ScheduleNode:
        if node.get_type() != isl.schedule_node_type.mark:
            return node
        name = str(node.mark_get_id().get_name())
        if not name.startswith(REGISTERS):
            return node
        sizes = [int(size) for size in name[len(REGISTERS) :].split(":")[0].split("x")]
        band = node.child(0)
        whole = _whole_tiles(band, sizes)
        wrapped = whole.wrap().set_tuple_name("isolate")
        return band.band_set_ast_build_options(isl.UnionSet.from_set(wrapped)).parent()

    return tree.map_schedule_node_bottom_up(isolated)


def _whole_tiles(band: isl.ScheduleNode, sizes: Sequence[int]) -> isl.Map:
    """From the iteration of the loops around a band to those of the band that are whole tiles."""
    around, over = band.get_schedule_depth(), len(sizes)
    inner = band
    while inner.get_type() in (isl.schedule_node_type.band, isl.schedule_node_type.mark):
        inner = inner.child(0)
    times = inner.get_prefix_schedule_union_map().intersect_domain(band.get_domain())
    points = isl.Set.from_union_set(times.range())
    depth = points.dim(isl.dim_type.set)
    within = depth - over
    extended = points.project_out(isl.dim_type.set, within, over)
    extended = extended.add_dims(isl.dim_type.set, over)
    for number, size in enumerate(sizes):
        extended = extended.intersect(_tile_of(extended, around + number, within + number, size))
    partial = extended.subtract(points)
    first = around + over
    tiles, partial = (
        one.project_out(isl.dim_type.set, first, depth - first) for one in (points, partial)
    )
    whole = isl.Map.from_range(tiles.subtract(partial))
    return whole.move_dims(isl.dim_type.in_, 0, isl.dim_type.out, 0, around)


def _tile_of(points: isl.Set, over: int, within: int, size: int) -> isl.Set:
    """Points whose coordinate ``within`` lies in the tile of number ``over``."""
    names = [f"d{number}" for number in range(points.dim(isl.dim_type.set))]
    tile, inside = names[over], names[within]
    text = f"{{ [{', '.join(names)}] : {size}{tile} <= {inside} < {size}{tile} + {size} }}"
    return isl.Set.read_from_str(points.get_ctx(), text)
