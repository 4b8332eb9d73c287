"""Schedules that are kept are those that would be made."""

import tvm_ffi
from kept_schedules import kept_schedules
from lowering import f32, kernel_of
from tvm import relax
from unoptimised import HOST

from tvm_ext.tir_schedules import schedule_kernels


def test_a_kernel_that_equals_an_earlier_one_is_not_scheduled_again(monkeypatch):
    kernels = [kernel_of(relax.op.tanh, f32(4, rows)) for rows in (16, 16, 8)]
    wanted, _ = schedule_kernels.schedule_kernel(kernels[1], HOST)
    calls = []
    tried = schedule_kernels._tried

    def counted(*given):
        calls.append(given[1])
        return tried(*given)

    monkeypatch.setattr(schedule_kernels, "_tried", counted)
    with kept_schedules():
        first, _ = schedule_kernels.schedule_kernel(kernels[0], HOST)
        before = len(calls)
        again, _ = schedule_kernels.schedule_kernel(kernels[1], HOST)
        assert len(calls) == before
        other, _ = schedule_kernels.schedule_kernel(kernels[2], HOST)
        assert len(calls) > before
    assert again.same_as(first)
    assert tvm_ffi.structural_equal(again, wanted)
    assert not tvm_ffi.structural_equal(other, wanted)
