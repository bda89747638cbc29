"""`python -m wornpath`: the same as the command `wornpath`."""

import os
import sys

from .binary import binary

if __name__ == "__main__":
    path = binary()
    os.execv(path, [path, *sys.argv[1:]])
