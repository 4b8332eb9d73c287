"""Peers agree on the numbers of a small model, and say why where they cannot take part."""

import numpy as np
import peers as peer_module
import pytest
from measure import Contest
from peers import OURS, PEERS, REFERENCE, Job, PeerError, Program, kernel_timer, program
from results import CaseResult, relative_difference

from tvm_ext.hardware.cpu.host import host_description

INPUTS = {"x": np.random.default_rng(0).standard_normal((2, 3, 8, 8), np.float32)}


@pytest.fixture
def job(tiny_model_path) -> Job:
    return Job(tiny_model_path, INPUTS, threads=1, is_kernel=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PEERS if name != "pytorch"])
@pytest.mark.parametrize("is_kernel", [False, True])
def test_outputs_are_those_of_the_reference(name, is_kernel, tiny_model_path):
    peer = PEERS[name]
    try:
        peer.version()
    except PeerError as error:
        pytest.skip(str(error))
    job = Job(tiny_model_path, INPUTS, threads=1, is_kernel=is_kernel)
    is_narrow = name.endswith("_bf16")
    if is_narrow and not host_description().multiplies_bfloat16:
        with pytest.raises(PeerError, match="no instruction for its products"):
            PEERS["tvm_ext_bf16"].prepare(job)
        pytest.skip("this CPU has no instruction")
    prepared = peer.prepare(job)
    prepared.run()
    wanted = REFERENCE.prepare(job).outputs()
    assert relative_difference(prepared.outputs(), wanted) < (3e-2 if is_narrow else 1e-5)
    assert relative_difference(OURS.prepare(job).outputs(), wanted) < 1e-5


@pytest.mark.extended
def test_outputs_outlive_their_program(job):
    for peer in (REFERENCE, OURS):
        kernel = Job(job.path, INPUTS, threads=1, is_kernel=True)
        kept = peer.prepare(kernel).outputs()
        copies = [array.copy() for array in kept]
        peer.prepare(kernel).run()
        assert relative_difference(kept, copies) == 0.0


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "pytorch"])
def test_a_peer_that_is_not_installed_says_so(name, job, monkeypatch):
    def absent(package: str) -> str:
        raise peer_module.PackageNotFoundError(package)

    monkeypatch.setattr(peer_module, "installed_version", absent)
    with pytest.raises(PeerError, match=r"not installed; expected .*pip install"):
        PEERS[name].version()
    kernel = Job(job.path, INPUTS, threads=1, is_kernel=True)
    with pytest.raises(PeerError, match="not installed"):
        PEERS[name].prepare(kernel)


def test_pytorch_takes_kernels_only(job):
    with pytest.raises(PeerError, match="single kernels only"):
        PEERS["pytorch"].prepare(job)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "tvm"])
def test_a_refused_model_has_one_line_of_reason(name, tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(PeerError) as error:
        PEERS[name].prepare(Job(broken, INPUTS, threads=1, is_kernel=False))
    assert "\n" not in str(error.value)


class Fake:
    """A peer that answers what it is told to."""

    def __init__(self, name: str, answer=None) -> None:
        self.name = self.title = name
        self._answer = answer

    def version(self) -> str:
        return "1"

    def prepare(self, job: Job) -> Program:
        if self._answer is None:
            raise PeerError("cannot")
        return Program(lambda: None, lambda: self._answer)


def contest(job: Job, peers: list[Fake]) -> CaseResult:
    result = CaseResult("m", "")
    Contest(OURS.prepare(job), job, peers, 1e-3, result).run(1e-3)
    return result


@pytest.mark.extended
def test_a_contest_times_and_compares_all(job):
    wanted = REFERENCE.prepare(job).outputs()
    wrong = [array + 1 for array in wanted]
    result = contest(job, [Fake("right", wanted), Fake("wrong", wrong), Fake("absent")])
    assert list(result.programs) == ["tvm_ext", "right", "wrong"]
    assert [measured.wrong for measured in result.programs.values()] == [False, False, True]
    assert result.programs["tvm_ext"].difference < 1e-5
    assert result.reasons == {"absent": "cannot"}


@pytest.mark.extended
def test_a_slow_program_is_left_out(job, monkeypatch):
    monkeypatch.setattr("measure.SLOWEST_SECONDS", -1.0)
    result = contest(job, [Fake("slow", REFERENCE.prepare(job).outputs())])
    assert list(result.programs) == ["tvm_ext"]
    assert "one run takes" in result.reasons["slow"]


@pytest.mark.extended
def test_without_the_reference_there_is_no_difference(job, monkeypatch):
    monkeypatch.setattr("measure.REFERENCE", Fake("onnxruntime"))
    result = contest(job, [])
    assert result.programs["tvm_ext"].difference is None
    assert not result.failed


@pytest.mark.extended
def test_kernel_timer_counts_the_named_kernels_only(job):
    model = OURS.compile(job.path, {"x": (2, 3, 8, 8)}, threads=1)
    names = {record.name for record in model.report.kernels}
    assert kernel_timer(model, job, names)() > 0
    assert kernel_timer(model, job, set())() == 0.0
    assert program(model, job).outputs()[0].shape == (2, 4, 8, 8)
