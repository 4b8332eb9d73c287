"""The steps of a convolution's reduction: channels of one tap of the window after the other."""

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TapSteps:
    """Steps that are counted with the channels of each tap rounded up to whole ``depth``.

    Attributes
    ----------
    taps : tuple[int, ...]
        Positions of the window along each of its dimensions, slowest first.
    channels : int
        Of the image.
    depth : int
        Steps whose operands are brought at a time.
    """

    taps: tuple[int, ...]
    channels: int
    depth: int

    @property
    def of_tap(self) -> int:
        """Steps of one tap."""
        return math.ceil(self.channels / self.depth) * self.depth

    @property
    def count(self) -> int:
        """Steps of all taps."""
        return math.prod(self.taps) * self.of_tap

    def split(self, step: Any) -> tuple[list[Any], Any]:
        """The position along each dimension of the window, and the channel."""
        tap, channel = step // self.of_tap, step % self.of_tap
        found = []
        for extent in reversed(self.taps):
            found.append(tap % extent)
            tap = tap // extent
        return found[::-1], channel
