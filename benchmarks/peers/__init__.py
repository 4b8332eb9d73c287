"""The programs that are compared with tvm-ext; one file each."""

from peers.onnxruntime import OnnxRuntime
from peers.openvino import OpenVino
from peers.ours import Ours
from peers.peer import Job, Peer, PeerError, Program
from peers.pytorch import PyTorch
from peers.stock_tvm import StockTvm

__all__ = ["OURS", "PEERS", "REFERENCE", "UNFUSED", "Job", "Peer", "PeerError", "Program"]

OURS = Ours()
# Every operator a kernel of its own, but scheduled and vectorised as always: what fusion saves.
UNFUSED = Ours("unfused", "unfused", disabled_passes=("FuseOperators", "FuseTIR"))
REFERENCE = OnnxRuntime()
PEERS: dict[str, Peer] = {
    peer.name: peer for peer in (REFERENCE, OpenVino(), StockTvm(), PyTorch())
}
