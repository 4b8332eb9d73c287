"""Names of a CSL program."""

import re
from collections.abc import Iterable


class Names:
    """Gives each thing a name of its own; keywords are the printer's matter.

    Parameters
    ----------
    taken : iterable of str
        Names that the program has anyway.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def unique(self, wanted: str) -> str:
        """``wanted`` with letters, digits and underscores only, and a number if it is taken.

        A name does not end in an underscore and a number: xDSL would cut them off.
        """
        base = re.sub(r"\W", "_", wanted, flags=re.ASCII)
        base = re.sub(r"_+(\d+)$", r"\1", base)
        if not base or base[0].isdigit():
            base = f"t{base}"
        found, number = base, 1
        while found in self._taken:
            number += 1
            found = f"{base}{'n' if base[-1].isdigit() else ''}{number}"
        self._taken.add(found)
        return found
