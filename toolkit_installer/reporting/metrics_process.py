"""Starts the process that answers over HTTP, which answering.py is: the text of a script is compiled at each start.

python -I -S endpoint_process.py LISTENER CHANNEL

Both are descriptors, as answering.py says.
"""

import sys

if __name__ == "__main__":
    sys.path.insert(0, __file__.rpartition("/")[0])  # this folder, which -I leaves away
    __import__("answering").main()
