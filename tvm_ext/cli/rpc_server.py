"""``tvm-ext rpc-server``: a server that measures candidates for tuning sessions elsewhere."""

from typing import Annotated

import typer

EXAMPLE = "Example: tvm-ext rpc-server --tracker 127.0.0.1:9190 --key mycpu"

_LOOPBACK = "127.0.0.1"


def rpc_server_command(
    tracker: Annotated[
        str,
        typer.Option(
            "--tracker",
            metavar="HOST:PORT",
            help="Tracker to register with. 'python -m tvm.exec.rpc_tracker' starts one.",
        ),
    ],
    key: Annotated[
        str,
        typer.Option(
            "--key", metavar="K", help="Key under which tuning sessions ask for this server."
        ),
    ],
    host: Annotated[
        str,
        typer.Option(
            "--host", help="Address to listen on. Whoever can reach it can run any code here."
        ),
    ] = _LOOPBACK,
    port: Annotated[
        int, typer.Option("--port", min=1, max=65535, help="First port to try.")
    ] = 9091,
    memory: Annotated[
        float,
        typer.Option(
            "--memory",
            min=0.25,
            metavar="GIB",
            help="Memory that a candidate may use, in GiB. There is no limit on a machine with"
            " a GPU.",
        ),
    ] = 8.0,
) -> None:
    """Measure candidates for tuning sessions that connect by TVM's RPC, until Ctrl-C.

    The server executes code that clients send, with this user's rights and
    without a password.
    """
    from tvm_ext.tuning.rpc_server import serve

    if host != _LOOPBACK:
        typer.echo(
            f"warning: listening on {host}: everyone who reaches this address can run any code as "
            "this user; expected a network that you trust",
            err=True,
        )
    else:
        typer.echo(
            "warning: every program on this machine can run code as this user through this port",
            err=True,
        )
    limit = int(memory * 2**30)
    serve(
        tracker,
        key,
        host,
        port,
        limit,
        ready=lambda at: typer.echo(f"serving '{key}' on {host}:{at}"),
        waiting=lambda: typer.echo(
            f"no tracker answers at {tracker} yet; waiting for one ('python -m "
            "tvm.exec.rpc_tracker')",
            err=True,
        ),
    )
