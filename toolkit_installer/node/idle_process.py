"""Starts the idle process, which is implemented in idling.py.

    python -I -S idle_process.py FD

`FD` is described in idling.py. That is imported because Python compiles the text of a script at each start, and a
process that has compiled it uses a tenth more memory, for months. If this script has bytecode, that is run instead.
"""

import sys

if __name__ == "__main__":
    # the folder of this script, which -I leaves out; the bytecode's is one level deeper
    sys.path.insert(0, __file__.rpartition("/")[0].removesuffix("/__pycache__"))
    __import__("idling").main()
