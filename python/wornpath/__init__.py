"""wornpath for Python: the admin plane of a router, prompts ordered by shared prefix, replays of recorded traffic.

    import wornpath

    order = wornpath.plan(prompts, pods=4)                 # order your own rows by prefix
    router = wornpath.Admin("http://127.0.0.1:8081")       # what a running router knows
    router.decisions(last=100).frame()                     # as a data frame, if pandas is installed

Only the standard library is needed. `wornpath.sidecar` runs inside of engines that publish no cache events.
"""

from .admin import Admin, AdminError, Candidate, candidates
from .binary import BinaryNotFound, CommandFailed, binary
from .planning import Plan, Planned, plan
from .replaying import replay
from .rows import Rows

__all__ = [
    "Admin",
    "AdminError",
    "BinaryNotFound",
    "Candidate",
    "CommandFailed",
    "Plan",
    "Planned",
    "Rows",
    "binary",
    "candidates",
    "plan",
    "replay",
]
