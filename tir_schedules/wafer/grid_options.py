"""Grids that are worth a try: how many PEs to cut an extent over."""


def grid_options(extent: int, most: int, count: int = 12) -> list[int]:
    """Numbers of PEs for ``extent`` elements, at most ``most``, ascending.

    Only those that leave as few PEs idle as they can: with ``t`` elements for each, the elements
    fill ceil(extent / t) PEs, and any more of them would have none. Thinned out evenly, in the
    logarithm, to ``count`` options; the largest one stays.
    """
    smallest_tile = max(1, -(-extent // most))
    found = []
    tile = smallest_tile
    while tile < extent:
        found.append(-(-extent // tile))
        tile = max(tile + 1, int(tile * 1.12))
    found.append(1)
    distinct = sorted(set(found))
    if len(distinct) <= count:
        return distinct
    step = (len(distinct) - 1) / (count - 1)
    return sorted({distinct[round(number * step)] for number in range(count)})
