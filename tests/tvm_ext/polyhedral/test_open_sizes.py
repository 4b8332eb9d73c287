"""Races in kernels of symbolic sizes, whose products no affine function has."""

import pytest
from loop_kernels import shifted
from tvm.script import tirx as T

from tvm_ext.polyhedral.check_schedules import check_schedule
from tvm_ext.polyhedral.kernel_domain import kernel_domain
from tvm_ext.polyhedral.size_polynomials import divided, product, total
from tvm_ext.polyhedral.symbolic_sizes import SAMPLES


@T.prim_func(private=True)
def fused(a: T.handle, n: T.int64, m: T.int64):
    y = T.match_buffer(a, (n, m), "float32")
    for both in T.parallel(n * m):
        y[T.Div(both, T.max(m, T.int64(1))), T.truncmod(both, T.max(m, T.int64(1)))] = T.float32(1)


@T.prim_func(private=True)
def fused_without_column(a: T.handle, n: T.int64, m: T.int64):
    y = T.match_buffer(a, (n, m), "float32")
    for both in T.parallel(n * m):
        y[T.Div(both, T.max(m, T.int64(1))), 0] = T.Cast("float32", both)


@T.prim_func(private=True)
def fused_of_tiles(a: T.handle, n: T.int64, m: T.int64):
    y = T.match_buffer(a, (n, m * T.int64(8)), "float32")
    for both in T.parallel(n * (m * T.int64(2))):
        for lane in T.vectorized(T.int64(4)):
            y[
                T.Div(both, T.max(m * T.int64(2), T.int64(1))),
                T.truncmod(both, T.max(m * T.int64(2), T.int64(1))) * T.int64(4) + lane,
            ] = T.float32(1)


@T.prim_func(private=True)
def fused_of_three(a: T.handle, n: T.int64, m: T.int64, k: T.int64):
    y = T.match_buffer(a, (n, m, k), "float32")
    for all3 in T.parallel(n * m * k):
        y[all3 // (m * k), all3 % (m * k) // k, all3 % k] = T.float32(1)


def test_a_fused_loop_is_taken_apart_by_a_size():
    for kernel in (fused, fused_of_tiles, fused_of_three):
        found = check_schedule(kernel)
        assert (found.races, found.not_proved, found.checked_at) == ([], [], [])
        assert found.proved
    assert check_schedule(fused_without_column).races


def addresses(columns):
    """Rows that are written by addresses, with so many more columns than they have."""

    @T.prim_func(private=True)
    def kernel(a: T.handle, n: T.int64, m: T.int64):
        y = T.match_buffer(a, (n, m), "float32")
        flat = T.decl_buffer((n * m,), data=y.data)
        for row in T.parallel(n):
            for column in range(m + columns):
                flat[row * m + column] = T.Cast("float32", row)

    return kernel


@pytest.mark.extended
def test_an_address_is_a_row_and_a_column():
    found = check_schedule(addresses(0))
    assert (found.races, found.not_proved) == ([], [])
    found = check_schedule(addresses(1))
    assert found.races
    assert found.races[0].what == "a parallel loop row"


def lines(stored):
    """Two elements of each tile; the second one has the row of element ``stored``."""

    @T.prim_func(private=True)
    def kernel(a: T.handle, b: T.handle, n: T.int64, m: T.int64):
        x = T.match_buffer(a, (n, m), "float32")
        y = T.match_buffer(b, (n, m), "float32")
        if n * m >= T.int64(2):
            for tile in T.parallel(T.Div(n * m + T.int64(1), T.int64(2))):
                row = T.alloc_buffer((2,), "int64")
                column = T.alloc_buffer((2,), "int64")
                first: T.let[T.int64] = T.min(tile * T.int64(2), n * m - T.int64(2))
                line: T.let[T.int64] = T.Div(first, T.max(m, T.int64(1)))
                row[0] = line
                column[0] = first - line * m
                row[1] = row[0] + T.Cast("int64", column[0] + T.int64(1) == m)
                column[1] = T.Select(
                    column[0] + T.int64(1) == m, T.int64(0), column[0] + T.int64(1)
                )
                y[row[0], column[0]] = x[row[0], column[0]]
                y[row[stored], column[1]] = x[row[stored], column[1]]

    return kernel


@pytest.mark.extended
def test_places_that_are_counted_on_from_the_one_before_are_addresses():
    found = check_schedule(lines(1))
    assert (found.races, found.not_proved) == ([], [])
    assert found.moved_back
    assert check_schedule(lines(0)).races


def flat_rows(columns, apart=0):
    """As ``addresses``, of an array whose rows nothing tells of: they begin so much later."""

    @T.prim_func(private=True)
    def kernel(a: T.handle, n: T.int64, m: T.int64):
        y = T.match_buffer(a, (n * (m + m * apart),), "float32")
        for row in T.parallel(n):
            for column in range(m + columns):
                y[row * (m + m * apart - apart) + column] = T.Cast("float32", row)

    return kernel


@T.prim_func(private=True)
def shared_out(a: T.handle, n: T.int64, parts: T.int64):
    y = T.match_buffer(a, (n,), "float32")
    for part in T.parallel(parts):
        for one in range(
            T.min(
                T.Div(n + parts - T.int64(1), parts),
                n - part * T.Div(n + parts - T.int64(1), parts),
            )
        ):
            y[part * T.Div(n + parts - T.int64(1), parts) + one] = T.float32(1)


@T.prim_func(private=True)
def taken_apart(a: T.handle, n: T.int64, m: T.int64, parts: T.int64):
    y = T.match_buffer(a, (n, m), "float32")
    if m >= T.int64(1) and parts >= T.int64(0):
        for part in T.parallel(parts):
            for one in range(T.int64(8)):
                y[(part * 8 + one) // m, (part * 8 + one) % m] = T.float32(1)


@pytest.mark.extended
def test_multiples_and_quotients_by_sizes_are_known_to_be_apart():
    for kernel in (flat_rows(0), shared_out, taken_apart):
        found = check_schedule(kernel)
        assert (found.races, found.not_proved, found.checked_at) == ([], [], [])
        assert found.proved
    assert check_schedule(flat_rows(1)).races


def overlapping(step):
    """Parts of a length that sizes decide, each ``step`` of these lengths behind the last."""

    @T.prim_func(private=True)
    def kernel(a: T.handle, n: T.int64, m: T.int64):
        y = T.match_buffer(a, (n * m * 2,), "float32")
        for part in T.parallel(n):
            for one in range(m * T.int64(2)):
                y[part * m * T.int64(step) + one] = T.Cast("float32", part)

    return kernel


@pytest.mark.extended
@pytest.mark.parametrize("step", [1, 2])
def test_parts_that_reach_into_the_next_one_are_a_race(step):
    found = check_schedule(overlapping(step))
    assert bool(found.races) == (step == 1)
    assert bool(found.proved) == (step == 2)


@pytest.mark.extended
def test_what_is_not_affine_is_checked_with_numbers():
    found = check_schedule(flat_rows(0, apart=1))
    assert not found.races
    assert "multiplies two values" in found.not_proved[0]
    assert len(found.checked_at) == len(SAMPLES)
    assert {sizes["m"] for sizes in found.checked_at} == set(SAMPLES)
    found = check_schedule(flat_rows(1, apart=0))
    assert found.races
    assert not found.checked_at


@pytest.mark.parametrize("tail", [0, 1])
def test_a_factor_with_few_values_is_taken_case_by_case(tail):
    @T.prim_func(private=True)
    def halves(a: T.handle, n: T.int64):
        y = T.match_buffer(a, (n,), "float32")
        for half in T.parallel(T.int64(2)):
            for element in range(T.Div(n, T.int64(2)) + tail):
                y[half * T.Div(n, T.int64(2)) + element] = T.Cast("float32", half)

    found = check_schedule(halves)
    assert bool(found.races) == bool(tail)
    assert found.not_proved == []


def masked(columns):
    """Vectors of four, the last of which would reach into the next row without its mask."""

    @T.prim_func(private=True)
    def kernel(a: T.handle, n: T.int64):
        y = T.match_buffer(a, (n * T.int64(6),), "float32")
        for row in T.parallel(n):
            for part in range(2):
                value = T.alloc_buffer((4,), "float32")
                T.masked_store(
                    y,
                    value[T.Ramp(0, 1, 4)],
                    T.Ramp(row * T.int64(6) + part * T.int64(4), T.int64(1), 4),
                    T.Ramp(part * T.int64(4), T.int64(1), 4) < T.Broadcast(T.int64(columns), 4),
                )

    return kernel


@pytest.mark.parametrize("columns", [6, 7])
def test_lanes_that_a_mask_leaves_out_are_not_written(columns):
    found = check_schedule(masked(columns))
    assert bool(found.races) == (columns == 7)
    assert found.not_proved == []


def test_an_array_whose_indices_are_affine_keeps_its_layout():
    assert kernel_domain(shifted).layouts == {"A": (1,)}


def test_what_is_divided_is_the_quotient_times_the_divisor_and_the_remainder():
    # 3 a b + 2 a + 5 by a + 1, with the atoms 0 for a and 1 for b.
    value, divisor = {(0, 1): 3, (0,): 2, (): 5}, {(0,): 1, (): 1}
    quotient, remainder = divided(value, divisor)
    assert total(product(quotient, divisor), remainder) == value
    assert not any(0 in monomial for monomial in remainder)
