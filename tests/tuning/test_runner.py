"""As many runners are lent as there are servers, whether servers are lost or return."""

from contextlib import ExitStack

import pytest

from tvm_ext.configs.errors import TuningError
from tvm_ext.tuning import runner as runner_pool
from tvm_ext.tuning.runner import RunDeviceAddress, RunnerPool

ADDRESS = RunDeviceAddress("tracker", 9190, "house")
MEMORY = 1 << 30


class Servers:
    """Stands for ``alive_servers``: how many there are, and how often somebody asked."""

    def __init__(self, count):
        self.count = count
        self.asked = 0
        self.is_reachable = True

    def __call__(self, address):
        assert address == ADDRESS
        self.asked += 1
        if not self.is_reachable:
            raise TuningError("no tracker answers")
        return self.count


class SleepingClock:
    """Stands for the module ``time``."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    found = SleepingClock()
    monkeypatch.setattr(runner_pool, "time", found)
    return found


def lend(pool, times=1) -> None:
    for _ in range(times):
        with pool.lent():
            pass


def lendable(pool) -> int:
    """Runners that can be had at a time."""
    with ExitStack() as stack:
        count = 0
        while not pool._free.empty():
            stack.enter_context(pool.lent())
            count += 1
    return count


def test_runners_of_servers_that_return_are_lent_again(clock):
    servers = Servers(3)
    pool = RunnerPool([ADDRESS] * 3, MEMORY, servers)
    assert lendable(pool) == 3
    servers.count = 1
    lend(pool, 3)
    assert lendable(pool) == 1
    servers.count = 2
    clock.now += 60
    lend(pool)
    assert lendable(pool) == 2
    servers.count = 3
    clock.now += 60
    lend(pool)
    assert lendable(pool) == 3
    # More servers than at the begin have no runner.
    servers.count = 9
    clock.now += 60
    lend(pool)
    assert lendable(pool) == pool.size == 3


def test_nobody_asks_all_the_time(clock):
    servers = Servers(1)
    pool = RunnerPool([ADDRESS] * 2, MEMORY, servers)
    lend(pool, 2)
    servers.count = 2
    clock.now += 60
    lend(pool)
    assert lendable(pool) == 2
    servers.count = 1
    lend(pool, 2)
    servers.count, servers.asked = 2, 0
    lend(pool, 5)
    # Once for each that was given back, and not when it was lent.
    assert servers.asked == 5
    assert lendable(pool) == 1
    clock.now += 60
    lend(pool)
    assert lendable(pool) == 2


def test_all_servers_that_are_there_are_not_looked_for(clock):
    servers = Servers(2)
    pool = RunnerPool([ADDRESS] * 2, MEMORY, servers)
    clock.now += 60
    with pool.lent():
        assert servers.asked == 0


def test_a_tracker_that_does_not_answer_changes_nothing(clock):
    servers = Servers(1)
    pool = RunnerPool([ADDRESS] * 2, MEMORY, servers)
    lend(pool, 2)
    servers.is_reachable = False
    clock.now += 60
    lend(pool)
    assert lendable(pool) == 1


def test_the_last_runner_is_always_lent(clock):
    pool = RunnerPool([ADDRESS] * 2, MEMORY, Servers(0))
    lend(pool, 4)
    assert lendable(pool) == 1


def test_this_machine_needs_no_server(clock):
    pool = RunnerPool([RunDeviceAddress()] * 2, MEMORY, Servers(0))
    clock.now += 60
    lend(pool, 4)
    assert lendable(pool) == 2


def test_a_session_without_any_server_gives_up_after_a_minute(clock):
    pool = RunnerPool([ADDRESS], MEMORY, Servers(0))
    with pytest.raises(TuningError, match=r"no RPC server with key 'house' is left.*tune again"):
        pool.check_servers()
    assert clock.now == pytest.approx(160, abs=1)
