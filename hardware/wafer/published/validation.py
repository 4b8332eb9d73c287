"""How well the models predict what they were not fitted on: one size left out at a time."""

from collections.abc import Sequence

from tvm_ext.hardware.wafer.published.families import RowPrediction, family_of, predict_rows
from tvm_ext.hardware.wafer.published.family import Family
from tvm_ext.hardware.wafer.published.linear import NotDetermined
from tvm_ext.hardware.wafer.published.rows import PublishedRow


def covered_rows(rows: Sequence[PublishedRow], family: Family) -> list[PublishedRow]:
    """The rows of a family that its model covers and that have a value."""
    own = [row for row in rows if family_of(row) is family]
    return [one.row for one in predict_rows(own) if one.error is not None]


def fitted(rows: Sequence[PublishedRow], family: Family) -> dict[str, float]:
    """The parameters that fit the family's rows. Raises NotDetermined where they are too few."""
    return family.fit(covered_rows(rows, family))


def leave_one_size_out(rows: Sequence[PublishedRow], family: Family) -> list[RowPrediction]:
    """Predictions for a family's rows, each from a fit without the rows of the same size.

    Rows without which a parameter is not determined are left out of the answer.
    """
    own = covered_rows(rows, family)
    found = []
    for size in dict.fromkeys(family.size(row) for row in own):
        others = [row for row in own if family.size(row) != size]
        try:
            parameters = family.fit(others)
        except NotDetermined:
            continue
        asked = [row for row in own if family.size(row) == size]
        found += predict_rows(asked, {family.name: parameters})
    return found
