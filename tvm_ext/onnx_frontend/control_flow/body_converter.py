"""What control flow needs of the importer."""

from typing import Any, Protocol

import onnx
from tvm import relax


class BodyConverter(Protocol):
    """The importer, as far as control flow needs it."""

    bb: relax.BlockBuilder
    _nodes: dict[str, Any]

    def convert_body(self, graph: onnx.GraphProto, nodes: dict[str, Any]) -> list[Any]:
        """The outputs of a body whose surroundings are ``nodes``, emitted where ``bb`` is.

        All values of the body are in ``nodes`` afterwards.
        """
