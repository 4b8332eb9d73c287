"""Scans along neighbouring threads: a block goes over its part of a row in tiles.

In a tile every thread combines its own neighbours, a warp the results of its threads by shuffles
(W. D. Hillis, G. L. Steele, "Data Parallel Algorithms", CACM 29(12), 1986), and the totals of the
warps go through shared memory.
"""

from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.launch import guarded, repeated
from tvm_ext.tir_schedules.cuda.scan.scan_places import ScanPlaces
from tvm_ext.tir_schedules.cuda.warp_code import ALL_LANES, block_barrier
from tvm_ext.tir_schedules.statements import sequence

_WARP = 32
_EVERYONE = tirx.const(ALL_LANES, "uint32")
_SERIAL = tirx.ForKind.SERIAL


class ScanAlong(ScanPlaces):
    """The statements of scans of which every thread has some neighbouring elements."""

    def along(self, totals: Any) -> list[tirx.Stmt]:
        """Scans whose neighbouring elements belong to neighbouring threads."""
        launch = self.launch
        self.carry, self.base = self.registers("carry"), self.registers("base")
        self.sums, self.other = self.registers("sum"), self.registers("other")
        self.terms = self.registers("terms", launch.width)
        self.values = self.registers("values", launch.width)
        self.warps = launch.parts // _WARP
        if self.warps > 1:
            shape = [launch.rows * self.warps]
            self.shared = self.arrays.allocated("warp_totals", shape, self.kernel.dtype, "shared")
        steps = -(-min(launch.chunk, self.kernel.length) // (launch.parts * launch.width))
        tiles = repeated(steps, self.dtype, lambda i: sequence(self._tile(i)), _SERIAL)
        return [*self._first_carry(totals), tiles]

    def _first_carry(self, totals: Any) -> list[tirx.Stmt]:
        """What is in front of the chunk: in every thread of the scan the totals of all before."""
        zero, carry, other = self.number(0), self.carry, self.other
        start, identity = self.kernel.start, self.kernel.identity
        if self.launch.chunks == 1:
            return [self.threads(lambda: self.held(carry).put(zero, start))]
        count = self.launch.chunks - 1

        def own() -> tirx.Stmt:
            row, _ = self.row()
            mine = self.held(carry)

            def one(i: Any) -> tirx.Stmt:
                place = i * self.number(_WARP) + self._lane()
                before = tirx.BufferLoad(totals, [place * self.number(self.kernel.count) + row])
                return guarded(
                    place < self.chunk, mine.put(zero, self.combined(mine.at(zero), before))
                )

            rounds = repeated(-(-count // _WARP), self.dtype, one, _SERIAL)
            return sequence([mine.put(zero, identity), rounds])

        statements = [self.threads(own)]
        for step in (16, 8, 4, 2, 1):

            def exchange(step: int = step) -> tirx.Stmt:
                value = self.held(carry).at(zero)
                moved = tirx.op.tvm_warp_shuffle_xor(_EVERYONE, value, step, _WARP, _WARP)
                return self.held(other).put(zero, moved)

            def fold() -> tirx.Stmt:
                mine = self.held(carry)
                return mine.put(zero, self.combined(mine.at(zero), self.held(other).at(zero)))

            statements += [self.threads(exchange), self.threads(fold)]

        def begin() -> tirx.Stmt:
            mine = self.held(carry)
            return mine.put(zero, self.combined(start, mine.at(zero)))

        return [*statements, self.threads(begin)]

    def _lane(self) -> Any:
        return tirx.floormod(self.x, self.number(_WARP))

    def _tile(self, step: Any) -> list[tirx.Stmt]:
        """``parts * width`` elements of every scan of the block."""
        statements = [self.threads(lambda: self._load(step)), *self._scan_of_warp()]
        if self.warps == 1:
            statements += self._through_last_lane()
        else:
            statements += self._through_shared_memory()
        return [*statements, self.threads(lambda: self._store(step))]

    def _vector(self, step: Any) -> Any:
        """The number of the thread's vector in the row."""
        launch = self.launch
        first = self.chunk * self.number(launch.chunk // launch.width)
        return first + step * self.number(launch.parts) + self.x

    def _inside(self, step: Any, row_inside: Any) -> Any:
        """Whether the thread's vector exists."""
        launch = self.launch
        vectors = -(-self.kernel.length // launch.width)
        inside = self._vector(step) < self.number(vectors)
        whole = self.kernel.length % (launch.chunk * launch.chunks) == 0
        if whole and launch.chunk % (launch.parts * launch.width) == 0:
            return row_inside
        return inside if row_inside is None else tirx.And(inside, row_inside)

    def _load(self, step: Any) -> tirx.Stmt:
        """The terms of the thread's neighbours, each combined with those in front of it."""
        width, zero = self.launch.width, self.number(0)
        terms, sums = self.held(self.terms), self.held(self.sums)
        row, _ = self.row()

        def term(_: Any, lane: Any) -> tirx.BufferStore:
            return tirx.BufferStore(terms.buffer, self.kernel.term, [*terms.thread, lane])

        nothing = repeated(width, self.dtype, lambda i: terms.put(i, self.kernel.identity))
        loads = self.neighbours(term, row, self._vector(step))
        chain = [
            terms.put(
                self.number(i),
                self.combined(terms.at(self.number(i - 1)), terms.at(self.number(i))),
            )
            for i in range(1, width)
        ]
        condition = self._inside(step, None)
        first = loads if condition is None else sequence([nothing, guarded(condition, loads)])
        return sequence([first, *chain, sums.put(zero, terms.at(self.number(width - 1)))])

    def _scan_of_warp(self) -> list[tirx.Stmt]:
        """``sums`` of all threads of the warp up to the own one, and in ``other`` without it."""
        zero, statements = self.number(0), []

        def moved(step: int) -> tirx.Stmt:
            value = self.held(self.sums).at(zero)
            shuffle = tirx.op.tvm_warp_shuffle_up(_EVERYONE, value, step, _WARP, _WARP)
            return self.held(self.other).put(zero, shuffle)

        for step in (1, 2, 4, 8, 16):

            def fold(step: int = step) -> tirx.Stmt:
                sums = self.held(self.sums)
                total = self.combined(self.held(self.other).at(zero), sums.at(zero))
                return guarded(self._lane() >= self.number(step), sums.put(zero, total))

            def exchange(step: int = step) -> tirx.Stmt:
                return moved(step)

            statements += [self.threads(exchange), self.threads(fold)]
        return [*statements, self.threads(lambda: moved(1))]

    def _behind(self, base: Any) -> tirx.Stmt:
        """In ``base``, what is in front of the thread, from what is in front of its warp."""
        zero, mine = self.number(0), self.held(self.base)
        more = self.combined(base, self.held(self.other).at(zero))
        return mine.put(zero, tirx.Select(self._lane() > zero, more, base))

    def _through_last_lane(self) -> list[tirx.Stmt]:
        """A scan of one warp: the last lane has the total of the tile."""
        zero = self.number(0)

        def share() -> tirx.Stmt:
            total = tirx.op.tvm_warp_shuffle(
                _EVERYONE, self.held(self.sums).at(zero), _WARP - 1, _WARP, _WARP
            )
            return self.held(self.other).put(zero, total)

        def advance() -> tirx.Stmt:
            carry = self.held(self.carry)
            return carry.put(zero, self.combined(carry.at(zero), self.held(self.other).at(zero)))

        return [
            self.threads(lambda: self._behind(self.held(self.carry).at(zero))),
            self.threads(share),
            self.threads(advance),
        ]

    def _through_shared_memory(self) -> list[tirx.Stmt]:
        """Every thread adds up the totals of all warps, those in front of its own by the way."""
        zero, warps = self.number(0), self.number(self.warps)

        def place(warp: Any) -> list[Any]:
            return [self.y * warps + warp]

        def publish() -> tirx.Stmt:
            at = place(tirx.floordiv(self.x, self.number(_WARP)))
            store = tirx.BufferStore(self.shared, self.held(self.sums).at(zero), at)
            return guarded(self._lane().equal(self.number(_WARP - 1)), store)

        def fold() -> tirx.Stmt:
            carry, base = self.held(self.carry), self.held(self.base)
            own = tirx.floordiv(self.x, self.number(_WARP))

            def one(warp: Any) -> tirx.Stmt:
                total = tirx.BufferLoad(self.shared, place(warp))
                return sequence(
                    [
                        guarded(own.equal(warp), base.put(zero, carry.at(zero))),
                        carry.put(zero, self.combined(carry.at(zero), total)),
                    ]
                )

            return sequence([repeated(self.warps, self.dtype, one), self._behind(base.at(zero))])

        # The first barrier keeps totals of the tile before until all have read them.
        wait = block_barrier("shared")
        return [wait, self.threads(publish), wait, self.threads(fold)]

    def _store(self, step: Any) -> tirx.Stmt:
        width, zero = self.launch.width, self.number(0)
        row, row_inside = self.row()
        base, terms, values = (self.held(a) for a in (self.base, self.terms, self.values))
        statements: list[tirx.Stmt] = []
        for stores, shifted in ((self.kernel.before, True), (self.kernel.after, False)):
            for i in range(width if stores else 0):
                own = i - 1 if shifted else i
                value = base.at(zero)
                if own >= 0:
                    value = self.combined(value, terms.at(self.number(own)))
                statements.append(values.put(self.number(i), value))
            statements += self.results(stores, row, self._vector(step))
        return guarded(self._inside(step, row_inside), sequence(statements))
