"""Everything that a package may contain, made from a built program and the repository."""

import datetime
import os
import subprocess
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import elf
import sbom
from archive import Entry, Tree, gzipped, program

ROOT = Path(__file__).resolve().parent.parent
# Features of released programs, beside the default ones.
FEATURES = "kafka,kubernetes,postgres,redis"


@dataclass
class Product:
    """The program with its documents. Two of the same commit and program are equal."""

    version: str
    epoch: int
    revision: str
    level: int
    """Compression, 1 to 9."""
    needs: elf.Needs
    binary: bytes
    """Without debug information, with the list of its crates."""
    sbom: bytes
    man: dict[str, bytes]
    completions: dict[str, bytes]

    def documents(self, folder: str) -> Tree:
        tree = {f"{folder}/{name}": Entry((ROOT / name).read_bytes()) for name in ("README.md", "LICENSE")}
        tree[f"{folder}/sbom.cdx.json"] = Entry(self.sbom)
        return tree

    def manual(self, folder: str) -> Tree:
        return {f"{folder}/{name}.gz": Entry(gzipped(text, 9)) for name, text in self.man.items()}

    def profiles(self, folder: str) -> Tree:
        return {f"{folder}/{path.name}": Entry(path.read_bytes()) for path in sorted((ROOT / "profiles").glob("*.yaml"))}

    def installed_program(self, path: str) -> Tree:
        return {path: program(self.binary)}


def version() -> str:
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def _git(*arguments: str) -> str:
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return result.stdout.strip() if result.returncode == 0 else ""


def epoch() -> int:
    """`SOURCE_DATE_EPOCH`, else the time of the commit: the time that all files of a package have."""
    given = os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct")
    if not given:
        raise SystemExit("no time for the files: this is no git repository; set SOURCE_DATE_EPOCH to seconds since 1970")
    return int(given)


def timestamp(epoch: int) -> str:
    return datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def read(binary: Path, level: int) -> Product:
    """Asks the program for its version, manual and completions, and cargo for its crates."""
    said = _run(binary, "--version").decode().split()
    if said != ["wornpath", version()]:
        raise SystemExit(f"{binary} says it is `{' '.join(said)}`, and Cargo.toml `wornpath {version()}`; build it again")
    time = epoch()
    needs = elf.read(binary.read_bytes(), str(binary))
    components = sbom.Components(ROOT, f"{needs.architecture}-unknown-linux-gnu", FEATURES)
    shells = {"bash": "wornpath", "zsh": "_wornpath", "fish": "wornpath.fish"}
    with tempfile.TemporaryDirectory() as folder:
        _run(binary, "man", "--folder", folder)
        man = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
        return Product(
            version=version(),
            epoch=time,
            revision=_git("rev-parse", "HEAD"),
            level=level,
            needs=needs,
            binary=_released(binary, sbom.auditable(components), Path(folder)),
            sbom=sbom.cyclonedx(components, version(), timestamp(time)),
            man=man,
            completions={name: _run(binary, "completions", shell) for shell, name in shells.items()},
        )


def _run(binary: Path, *arguments: str) -> bytes:
    # Nothing of this machine's configuration may come into a package.
    result = subprocess.run([binary.resolve(), *arguments], capture_output=True, env={"PATH": os.environ["PATH"]})
    if result.returncode != 0:
        raise SystemExit(f"{binary} {' '.join(arguments)} failed: {result.stderr.decode().strip()}")
    return result.stdout


def _released(binary: Path, crates: bytes, folder: Path) -> bytes:
    section, stripped = folder / "crates", folder / "stripped"
    section.write_bytes(crates)
    # An earlier section is replaced: `cargo auditable` may have built the program.
    tool = ["objcopy", "--strip-all", "--remove-section=.dep-v0", f"--add-section=.dep-v0={section}"]
    subprocess.run([*tool, "--set-section-flags=.dep-v0=noload,readonly", binary, stripped], check=True)
    return stripped.read_bytes()
