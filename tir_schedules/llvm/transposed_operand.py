"""Turns an operand that lies the wrong way for vectors, once, before a product reads it."""

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.tir_schedules.block_access import BlockAccess, access_of, operands_of, read_position

# Times that each element is used after it was turned: below, turning costs more than it gains.
LEAST_USES = 8


def turn_operand(sch: s_tir.Schedule, access: BlockAccess) -> BlockAccess | None:
    """The access after a copy of one operand was laid out along the output; None if not done.

    For ``C[i, j] += A[i, k] * B[j, k]``: B is copied as ``[k, j]``, so that vectors run along j.
    """
    columns = [axis for axis in access.spatial if access.write_strides[axis] == 1]
    for axis in columns:
        found = [
            (operand, depth)
            for operand, strides in enumerate(access.read_strides)
            for depth in access.reduction
            if strides[axis] not in (0, 1, None) and strides[depth] == 1
        ]
        if len(found) != 1:
            continue
        operand, depth = found[0]
        if _uses(access, operand) < LEAST_USES:
            continue
        if not swapped_copy(sch, access.block, operand, axis, depth):
            continue
        return access_of(sch, access.block)
    return None


def _uses(access: BlockAccess, operand: int) -> int:
    uses = 1
    for axis in access.spatial:
        if access.read_strides[operand][axis] == 0:
            uses *= access.extents[axis]
    return uses


def swapped_copy(sch: s_tir.Schedule, block: SBlockRV, operand: int, axis: int, depth: int) -> bool:
    """Lets ``block`` read a copy of an operand in which two dimensions have changed places.

    They are those that two iteration variables, by position, walk. False, and nothing is changed,
    where one of them is not the plain index of a dimension.
    """
    stmt = sch.get(block)
    region = operands_of(stmt)[operand]
    variables = stmt.iter_vars
    places = [
        next((p for p, dim in enumerate(region.region) if dim.min.same_as(variables[v].var)), None)
        for v in (axis, depth)
    ]
    if None in places:
        return False
    order = list(range(len(region.region)))
    first, second = (place for place in places if place is not None)
    order[first], order[second] = order[second], order[first]
    position = read_position(stmt, region.source)
    sch.cache_read(block, position, "global")
    sch.transform_layout(
        block, ("read", position), lambda *index: tuple(index[place] for place in order)
    )
    return True
