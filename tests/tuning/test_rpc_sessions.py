"""Sessions that measure on servers of TVM's RPC."""

import pytest
from rpc_servers import KEY, rpc_house
from sessions import QUICK, run_session
from small_kernels import matmul_task

from tvm_ext.configs.errors import TuningError
from tvm_ext.tuning.logs.trial_log import read_trials
from tvm_ext.tuning.runner import parse_address, rpc_devices


class Killer:
    """Kills a server in the middle of a batch."""

    def __init__(self, server):
        self.server = server

    def update(self, progress):
        if progress.trials_done == 12:
            self.server.kill()


@pytest.mark.slow
def test_two_servers_one_of_them_killed(tmp_path):
    with rpc_house(2) as (address, servers):
        tracker = f"{address.host}:{address.port}"
        devices = rpc_devices(tracker, KEY, 20.0)
        assert len(devices) == 2
        effort = QUICK.model_copy(update={"batch": 8})
        killer = Killer(servers[0])
        run_session(tmp_path, [matmul_task()], effort, killer, trials=32, devices=devices)
        assert servers[0].wait() < 0
        with pytest.raises(TuningError, match=r"no server with key 'other'.*tvm-ext rpc-server"):
            rpc_devices(tracker, "other", 20.0)
    trials = [t for t in read_trials(tmp_path).trials if t.purpose == "search"]
    assert len(trials) == 32
    assert len({trial.candidate for trial in trials}) == 32
    assert [trial.message for trial in trials if trial.status != "ok"] == []
    assert {trial.device for trial in trials} == {f"{tracker} {KEY}"}


def test_no_tracker():
    with pytest.raises(TuningError, match=r"no RPC tracker answers at 127.0.0.1:9 "):
        rpc_devices("127.0.0.1:9", KEY, 20.0)


@pytest.mark.parametrize("text", ["9190", "host:", "host:x", "host:70000", ":9190"])
def test_addresses_that_are_none(text):
    with pytest.raises(TuningError, match="expected HOST:PORT"):
        parse_address(text)


def test_address_of_six_groups():
    assert parse_address("[::1]:9190") == ("::1", 9190)
