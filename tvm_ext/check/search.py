"""Binary search for the step where agreement ends, when some steps cannot be tried."""

from collections.abc import Callable


def last_agreement(count: int, agrees: Callable[[int], bool | None]) -> tuple[int, int]:
    """Positions ``(low, high)``: ``low`` agrees, ``high`` differs, nothing between is known.

    Position 0 is taken to agree and position ``count - 1`` to differ. A step that differs and is
    put right by a later one does not mislead: agreement does end between the two that come back.

    Parameters
    ----------
    count : int
        Number of positions, at least 2.
    agrees : Callable[[int], bool | None]
        Asked about positions in between, each once at most; None when it cannot tell.
    """
    low, high = 0, count - 1
    unknown: set[int] = set()
    while True:
        open_positions = [p for p in range(low + 1, high) if p not in unknown]
        if not open_positions:
            return low, high
        middle = open_positions[len(open_positions) // 2]
        answer = agrees(middle)
        if answer is None:
            unknown.add(middle)
        elif answer:
            low = middle
        else:
            high = middle
