"""One result from the partial results of a row's threads: by shuffles, or in shared memory."""

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.launch import repeated
from tvm_ext.tir_schedules.cuda.rows.row_places import RowPlaces
from tvm_ext.tir_schedules.rows.row_combine import Combine
from tvm_ext.tir_schedules.statements import sequence

# Partial results whose folding is written out; more are a loop.
_MOST_UNROLLED = 16

# Threads that exchange values without memory (CUDA C++ Programming Guide, warp shuffles).
WARP = 32

# All threads of a warp: none has left, or is in a branch of its own.
_EVERYONE = tirx.const(0xFFFFFFFF, "uint32")


class RowCombining(RowPlaces):
    """The combination of the results of several threads."""

    def by_shuffles(self, partial: Sequence[Any], combine: Combine) -> list[tirx.Stmt]:
        """Neighbouring threads exchange partial results until all of a row have all of it.

        In a warp by butterflies (D. E. Knuth, "The Art of Computer Programming" 4A, 7.1.3); with
        several warps a row, one result of each goes through shared memory to all of them.
        """
        warps = self.launch.parts // WARP
        statements = self._butterflies(partial, combine, WARP)
        if warps == 1:
            return statements
        shared = [
            self.arrays.allocated(
                f"{p.name}_warps", [self.launch.rows * warps], str(p.dtype), "shared"
            )
            for p in partial
        ]

        def place(warp: Any) -> list[Any]:
            return [self.y * self.number(warps) + warp]

        def publish() -> tirx.Stmt:
            at = place(tirx.floordiv(self.x, self.number(WARP)))
            stores = [
                tirx.BufferStore(s, tirx.BufferLoad(p, self._own()), at)
                for s, p in zip(shared, partial, strict=True)
            ]
            leads = tirx.floormod(self.x, self.number(WARP)).equal(self.number(0))
            return tirx.IfThenElse(leads, sequence(stores), None)

        def fetch() -> tirx.Stmt:
            at = place(tirx.floormod(self.x, self.number(warps)))
            return sequence(
                [
                    tirx.BufferStore(p, tirx.BufferLoad(s, at), self._own())
                    for s, p in zip(shared, partial, strict=True)
                ]
            )

        rest = self._butterflies(partial, combine, warps)
        return [*statements, self.threads(publish), self.threads(fetch), *rest]

    def _own(self) -> list[Any]:
        """The thread's place in an array with one element for each."""
        return [self.y, self.x, self.number(0)]

    def _butterflies(self, partial: Sequence[Any], combine: Combine, width: int) -> list[tirx.Stmt]:
        """``partial`` combined over every ``width`` neighbouring threads of a warp, in each."""
        others = [
            self.arrays.allocated(f"{p.name}_other", [*self.extents, 1], str(p.dtype), "local")
            for p in partial
        ]
        statements: list[tirx.Stmt] = []
        step = width // 2
        while step:

            def exchange(step: int = step) -> tirx.Stmt:
                stores = []
                for other, own in zip(others, partial, strict=True):
                    value = tirx.BufferLoad(own, self._own())
                    moved = tirx.op.tvm_warp_shuffle_xor(_EVERYONE, value, step, WARP, WARP)
                    stores.append(tirx.BufferStore(other, moved, self._own()))
                return sequence(stores)

            def fold(step: int = step) -> tirx.Stmt:
                mine = [tirx.BufferLoad(own, self._own()) for own in partial]
                theirs = [tirx.BufferLoad(other, self._own()) for other in others]
                return self._stored(partial, combine(mine, theirs), self._own())

            statements += [self.threads(exchange), self.threads(fold)]
            step //= 2
        if len(partial) > 1:
            # Of equals, each may have picked its own.
            statements.append(self.threads(lambda: self._of_first_lane(partial)))
        return statements

    def _of_first_lane(self, partial: Sequence[Any]) -> tirx.Stmt:
        stores = []
        for own in partial:
            value = tirx.BufferLoad(own, self._own())
            first = tirx.op.tvm_warp_shuffle(_EVERYONE, value, 0, WARP, WARP)
            stores.append(tirx.BufferStore(own, first, self._own()))
        return sequence(stores)

    def through_shared_memory(
        self, partial: Sequence[Any], combine: Combine
    ) -> tuple[list[Any], list[tirx.Stmt]]:
        """Every thread folds the partial results of its row, each from shared memory."""
        rows, parts = self.launch.rows, self.launch.parts
        shared = [
            self.arrays.allocated(f"{p.name}_shared", [parts * rows], str(p.dtype), "shared")
            for p in partial
        ]
        shape = [*self.extents, 1]
        results = [
            self.arrays.allocated(f"{p.name}_all", shape, str(p.dtype), "local") for p in partial
        ]

        def place(part: Any) -> Any:
            if self.launch.across:
                return part * self.number(rows) + self.x
            return self.y * self.number(parts) + part

        def publish() -> tirx.Stmt:
            at = [self.y, self.x, self.number(0)]
            return sequence(
                [
                    tirx.BufferStore(s, tirx.BufferLoad(p, at), [place(self.part)])
                    for s, p in zip(shared, partial, strict=True)
                ]
            )

        def fold() -> tirx.Stmt:
            at = [self.y, self.x, self.number(0)]
            first = [
                tirx.BufferStore(r, tirx.BufferLoad(s, [place(self.number(0))]), at)
                for r, s in zip(results, shared, strict=True)
            ]

            def more(i: Any) -> tirx.Stmt:
                left = [tirx.BufferLoad(r, at) for r in results]
                right = [tirx.BufferLoad(s, [place(i + self.number(1))]) for s in shared]
                return self._stored(results, combine(left, right), at)

            kind = tirx.ForKind.UNROLLED if parts <= _MOST_UNROLLED else tirx.ForKind.SERIAL
            return sequence([*first, repeated(parts - 1, self.dtype, more, kind)])

        return results, [self.threads(publish), self.threads(fold)]

    def _stored(self, buffers: Sequence[Any], values: Sequence[Any], at: list[Any]) -> tirx.Stmt:
        """Stores all values, none of which is to see what another one stores."""
        if len(buffers) == 1:
            return tirx.BufferStore(buffers[0], values[0], at)
        news = [self.arrays.registers("new", 1, str(b.dtype), self.mine()) for b in buffers]
        zero = self.number(0)
        return sequence(
            [
                *(new.put(zero, value) for new, value in zip(news, values, strict=True)),
                *(
                    tirx.BufferStore(b, new.at(zero), at)
                    for b, new in zip(buffers, news, strict=True)
                ),
            ]
        )
