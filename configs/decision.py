"""What a pass decided about one place of a model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """One match of a pass: rewritten, or looked at and left alone.

    Attributes
    ----------
    pass_name : str
        The pass that decided.
    applied : bool
        Whether the pass changed this place.
    where : str
        Names of the original ONNX nodes, joined by " + ".
    reason : str
        What was done, or why nothing was.
    """

    pass_name: str
    applied: bool
    where: str
    reason: str
