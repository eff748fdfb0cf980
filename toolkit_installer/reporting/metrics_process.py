"""Starts the metrics server, which is a module of its own, because Python compiles a script at each start.

    python -I -S metrics_process.py LISTENER CHANNEL

Both arguments are descriptors (metrics_server.py).
"""

import sys

if __name__ == "__main__":
    sys.path.insert(0, __file__.rpartition("/")[0])  # this folder, which -I omits
    __import__("metrics_server").main()
