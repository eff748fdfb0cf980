"""Starts the process that answers over HTTP, which metrics_server.py is: the text of a script is compiled at each start.

python -I -S metrics_process.py LISTENER CHANNEL

Both are descriptors, as metrics_server.py says.
"""

import sys

if __name__ == "__main__":
    sys.path.insert(0, __file__.rpartition("/")[0])  # this folder, which -I leaves away
    __import__("metrics_server").main()
