"""Starts the idle process, which idling.py is. It is imported there: the text of a script is compiled at each start.

python -I -S idle_process.py FD

A process that has compiled it keeps a tenth more memory, for months. `FD` is what idling.py says. Where there is
bytecode of this script, that is run in its place.
"""

import sys

if __name__ == "__main__":
    # this folder, which -I leaves away; the bytecode's is one further in
    sys.path.insert(0, __file__.rpartition("/")[0].removesuffix("/__pycache__"))
    __import__("idling").main()
