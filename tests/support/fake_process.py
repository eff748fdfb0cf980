"""Becomes a process of a made node: `fake_process.py ROOT NAME USER ARGUMENT...`, and more on its standard input.

A file of its own: the program's text on a command line would be taken for a flag's value of the process that is played.
"""

import ctypes
import json
import os
import socket
import sys

more = json.loads(sys.stdin.readline())
os.chroot(sys.argv[1])
os.chdir(more["folder"])
kept: list[object] = []
for path in (*more["opens"], *more["listens"]):
    os.makedirs(os.path.dirname(path), exist_ok=True)
kept += [open(path, "a") for path in more["opens"]]  # noqa: SIM115  # they stay open to its end
for path in more["listens"]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    kept.append(listener)
user = int(sys.argv[3])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
ctypes.CDLL(None).prctl(15, sys.argv[2].encode(), 0, 0, 0)  # PR_SET_NAME
sys.stdout.write("ready\n")
sys.stdout.flush()
sys.stdin.read()
