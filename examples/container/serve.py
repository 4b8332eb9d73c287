"""A saved model as a service, on tvm-ext's runtime and Python's own HTTP server.

    python serve.py            # serves model.tvmx of this folder on port 8000
    python serve.py --check    # asks the service whether it can run; exit code 1 if not

``POST /run`` takes the inputs as an .npz file and answers with the outputs as one. ``GET /health``
runs the model once on zeros.
"""

import io
import sys
import urllib.error
import urllib.request
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np

import tvm_ext.runtime
from tvm_ext.errors import TvmExtError

MODEL = Path("model.tvmx")
PORT = 8000
# A request that is larger is refused before it is read.
MOST_BYTES = 64 << 20


class Handler(BaseHTTPRequestHandler):
    """Answers one request at a time: a run already takes all cores of the model."""

    model = None

    def do_GET(self):
        """Runs the model on zeros; a size that a run decides is 1."""
        if self.path != "/health":
            self.answer(404, f"there is no {self.path}; expected GET /health or POST /run\n")
            return
        inputs = {
            given.name: np.zeros([n if isinstance(n, int) else 1 for n in given.shape], given.dtype)
            for given in self.model.inputs
        }
        self.run_model(inputs)

    def do_POST(self):
        """Runs the model on the arrays that are sent."""
        if self.path != "/run":
            self.answer(404, f"there is no {self.path}; expected GET /health or POST /run\n")
            return
        size = int(self.headers.get("Content-Length") or 0)
        if not 0 < size <= MOST_BYTES:
            self.answer(413, f"the request has {size} bytes; expected 1 to {MOST_BYTES}\n")
            return
        data = io.BytesIO(self.rfile.read(size))
        # NumPy reads single arrays and pickled objects by the same function.
        if not zipfile.is_zipfile(data):
            self.answer(400, "the request is no .npz file; send one that holds all inputs\n")
            return
        try:
            inputs = dict(np.load(data, allow_pickle=False))
        except (ValueError, OSError, zipfile.BadZipFile) as error:
            self.answer(400, f"the .npz file cannot be read ({error}); send one of all inputs\n")
            return
        self.run_model(inputs)

    def run_model(self, inputs):
        """Answers with the outputs, or with the one line that says what is wrong."""
        try:
            outputs = self.model.run(inputs)
        except TvmExtError as error:
            self.answer(400, f"{error}\n")
            return
        data = io.BytesIO()
        np.savez(data, **outputs)
        self.answer(200, data.getvalue())

    def answer(self, code, body):
        """Sends the whole of an answer."""
        data = body.encode() if isinstance(body, str) else body
        kind = "text/plain; charset=utf-8" if isinstance(body, str) else "application/octet-stream"
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def check():
    """Asks the service of this machine for a run; returns the exit code."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=10) as answer:
            print(f"the model runs: {len(answer.read())} bytes of outputs")
    except (urllib.error.URLError, OSError) as error:
        print(f"the service does not run: {error}", file=sys.stderr)
        return 1
    return 0


def main():
    """Serves until the process is ended."""
    if "--check" in sys.argv:
        return check()
    Handler.model = tvm_ext.runtime.load(MODEL)
    print(f"serving {MODEL} on port {PORT}")
    HTTPServer(("", PORT), Handler).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
