"""NonMaxSuppression on a GPU: a block of threads for each batch and class.

Boxes are taken by falling score in tiles. Of a tile, every box is compared with all that stayed
before, by a warp, and with those in front of it in the tile, by some threads; one thread then goes
over the tile in order, with one comparison of bits a box. A block ends at the first tile whose last
score is below the threshold, or when as many boxes stay as may.
"""

from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.box_suppression import suppression_of
from tvm_ext.tir_schedules.cuda.as_loops import without_offsets
from tvm_ext.tir_schedules.cuda.elementwise import with_arrays
from tvm_ext.tir_schedules.cuda.suppression.suppression_code import SuppressionCode
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.flat_views import FlatViews, is_compact
from tvm_ext.tir_schedules.template import Machine, NotMine


@dataclass(frozen=True)
class Boxes:
    """A suppression of known sizes.

    Attributes
    ----------
    buffers : dict of str to buffer
        Flat views of the parameters by name; see ``PARAMETERS``.
    classes, count, most : int
        Classes of a batch, boxes of a batch, and how many of a class can stay.
    groups : int
        Batches times classes.
    centered : bool
        Whether boxes are given by centers.
    """

    buffers: dict[str, Any]
    classes: int
    count: int
    most: int
    groups: int
    centered: bool


class BoxSuppression:
    """Greedy suppression of boxes."""

    name = "box suppression"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, GpuDescription):
            return NotMine("the target is not an NVIDIA GPU")
        func = without_offsets(func)
        found = suppression_of(func)
        if found is None:
            return NotMine("the kernel suppresses no boxes")
        named, centered = found
        if not all(is_compact(param) for param in named.values()):
            return NotMine("a number of boxes is known in the run only")
        batches, classes, count = (static_extent(size) or 0 for size in named["scores"].shape)
        most = static_extent(named["kept"].shape[-1]) or 0
        if not batches * classes * count * most:
            return NotMine("there are no boxes, or none may stay")
        views = FlatViews()
        buffers = {name: views.of(param) for name, param in named.items()}
        boxes = Boxes(buffers, classes, count, most, batches * classes, centered)
        tile = decisions.pick("tile", (32, 64, 128), 64)
        code = SuppressionCode(boxes, tile)
        return s_tir.Schedule(with_arrays(func, views, [code.write()], code.arrays))
