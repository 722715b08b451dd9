"""`python -m sglang_dualpath.router.curve DIRECTORY`: a CURVE key pair for the control socket."""

import argparse
from pathlib import Path

import zmq.auth

from sglang_dualpath.telemetry.reporter import ROUTER_KEY_VARIABLE


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m sglang_dualpath.router.curve", description=__doc__)
    parser.add_argument("directory", type=Path, help="where router.key_secret and router.key are written")
    directory = parser.parse_args(argv).directory
    directory.mkdir(parents=True, exist_ok=True)
    _, secret_path = zmq.auth.create_certificates(directory, "router")
    Path(secret_path).chmod(0o600)
    public, _ = zmq.auth.load_certificate(secret_path)
    print(f"router:  --control-curve-secret {secret_path}")
    print(f"engines: {ROUTER_KEY_VARIABLE}={public.decode()}")


if __name__ == "__main__":
    main()
