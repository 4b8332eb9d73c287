"""Limits of a mesh: each refusal names its limit, and what just fits is let through."""

import pytest
from communication_cases import mesh

from tvm_ext.hardware.wafer.description import WaferLimitError, check_limits, limit_refusal
from tvm_ext.hardware.wafer.exchanges import transpose


def test_what_just_fits():
    wse2 = mesh()
    check_limits(wse2, 994, 750, wse2.usable_bytes, wse2.usable_colours)
    assert limit_refusal(wse2, 1, 1, 0, 0) is None


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((995, 1, 0, 0), "rectangle: 995x1 PEs, and 'wse2' has 994x750"),
        ((1, 751, 0, 0), "rectangle: 1x751 PEs"),
        ((0, 1, 0, 0), "rectangle of 0x1 PEs"),
        ((1, 1, 43_009, 0), "SRAM: 43,009 bytes a PE, and 'wse2' has 43,008"),
        ((1, 1, 0, 22), "colours: 22 routes in one router, and 'wse2' has 21"),
        ((995, 1, 1e9, 99), "rectangle"),
    ],
)
def test_what_does_not_fit(asked, message):
    with pytest.raises(WaferLimitError, match=message) as caught:
        check_limits(mesh(), *asked)
    assert "\n" not in str(caught.value)
    assert "expected" in str(caught.value)
    assert limit_refusal(mesh(), *asked) == str(caught.value)


def test_a_smaller_grid_has_its_own_limit():
    with pytest.raises(WaferLimitError, match="'wse2' has 8x8"):
        check_limits(mesh().with_grid(8, 8), 9, 8, 0, 0)


def test_a_transposition_runs_out_of_colours():
    fits, too_large = (transpose(mesh(), 1, extent).colours for extent in (21, 22))
    check_limits(mesh(), 21, 21, 0, fits)
    with pytest.raises(WaferLimitError, match="colours"):
        check_limits(mesh(), 22, 22, 0, too_large)
