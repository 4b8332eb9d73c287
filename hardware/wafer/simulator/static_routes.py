"""Colours: what a router does with a wavelet depends on its colour only."""

from collections import defaultdict

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.wafer.errors import MeshLimitError
from tvm_ext.hardware.wafer.simulator.program import Program, Stream
from tvm_ext.hardware.wafer.simulator.routes import Place

_RAMP = 4


def colours_in_use(mesh: MeshDescription, program: Program) -> int:
    """The most colours in one router.

    Raises MeshLimitError if a router would have to send wavelets of one colour different ways
    without turns, which a switch needs, or with more positions than a switch has.
    """
    ways: dict[tuple[Place, int], set[frozenset[int]]] = defaultdict(set)
    switched: dict[int, bool] = {}
    for stream in program.streams:
        switched[stream.colour] = stream.turn is not None and switched.get(stream.colour, True)
        for place, outputs in _outputs(stream).items():
            ways[place, stream.colour].add(frozenset(outputs))
    for (place, colour), found in ways.items():
        positions = mesh.switch_positions if switched[colour] else 1
        if len(found) > positions:
            raise MeshLimitError(
                f"colour {colour} goes {len(found)} ways at PE {place}; expected at most "
                f"{positions}: use another colour"
            )
    colours: dict[Place, set[int]] = defaultdict(set)
    for place, colour in ways:
        colours[place].add(colour)
    return max((len(found) for found in colours.values()), default=0)


def _outputs(stream: Stream) -> dict[Place, set[int]]:
    """Where each router on the way of a stream sends its wavelets."""
    outputs: dict[Place, set[int]] = defaultdict(set)
    for branch in stream.route.branches:
        outputs[branch.place].add(branch.direction)
    for target, _ in stream.route.targets:
        outputs[target].add(_RAMP)
    return outputs
