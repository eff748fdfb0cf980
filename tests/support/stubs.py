"""Generates the classes of the messages from our own protos, beside them: `make stubs`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PROTOS = tuple(sorted((PROJECT / "toolkit_installer").rglob("*.proto")))


def generate(proto: Path, into: Path) -> None:
    """Write what is made of a proto into a folder: NAME_pb2.py and NAME_pb2.pyi."""
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{proto.parent}", f"--python_out={into}"]
    subprocess.run([*command, f"--pyi_out={into}", proto.name], check=True, timeout=60)


if __name__ == "__main__":
    for each in PROTOS:
        generate(each, each.parent)
