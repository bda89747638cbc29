"""Finds and runs the `wornpath` program that this package was installed with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig


class BinaryNotFound(RuntimeError):
    """There is no `wornpath` program."""


class CommandFailed(RuntimeError):
    """A `wornpath` command failed; the text is what it wrote to standard error."""

    def __init__(self, command: str, status: int, problem: str):
        super().__init__(f"wornpath {command} failed with status {status}: {problem}")
        self.command, self.status, self.problem = command, status, problem


def binary() -> str:
    """The path of the program: `WORNPATH_BINARY`, else the one beside this Python, else the first in `PATH`."""
    chosen = os.environ.get("WORNPATH_BINARY")
    if chosen:
        if os.access(chosen, os.X_OK):
            return chosen
        raise BinaryNotFound(f"WORNPATH_BINARY is {chosen}, which is no program; correct or unset it")
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    for folder in folders:
        path = os.path.join(folder, "wornpath")
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("wornpath")
    if found is None:
        raise BinaryNotFound("there is no program `wornpath`: pip install wornpath, or set WORNPATH_BINARY to its path")
    return found


def run(command: str, *arguments: str) -> str:
    """Runs a command of `wornpath`, and returns its standard output."""
    result = subprocess.run([binary(), command, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode != 0:
        raise CommandFailed(command, result.returncode, result.stderr.strip() or result.stdout.strip())
    return result.stdout
