"""The places that carry the version of wornpath, and the changelog's sections."""

import re
from pathlib import Path

# A file, and what surrounds the version in it. Every pattern must be found.
PLACES: list[tuple[str, str, str]] = [
    ("Cargo.toml", r'(?m)^(version = ")', '"'),
    ("Cargo.toml", r'(?m)^(wornpath-[a-z]+ = \{ path = "[^"]+", version = "=)', '"'),
    ("Cargo.lock", r'(?m)^(name = "wornpath(?:-[a-z]+)?"\nversion = ")', '"'),
    ("bench/Cargo.lock", r'(?m)^(name = "wornpath(?:-[a-z]+)?"\nversion = ")', '"'),
    ("python/pyproject.toml", r'(?m)^(version = ")', '"'),
    ("deploy/helm/wornpath/Chart.yaml", r"(?m)^(version: )", "\n"),
    ("deploy/helm/wornpath/Chart.yaml", r"(?m)^(appVersion: )", "\n"),
    ("docs/installing.md", r"(wornpath )", "\n"),
    ("docs/installing.md", r"(wornpath:)", ""),
    ("docs/installing.md", r"(wornpath[-_])", "[-_]"),
    ("examples/plugin/README.md", r'(tag = "v)', '"'),
]
NUMBER = r"\d+\.\d+\.\d+(?:-[a-z]+\.\d+)?"


def parse(version: str) -> tuple:
    """To compare by; a pre-release comes before its release."""
    if not re.fullmatch(NUMBER, version):
        raise SystemExit(f"`{version}` is no version; write three numbers such as 0.2.0, or a pre-release such as 0.2.0-rc.1")
    numbers, _, pre = version.partition("-")
    word, _, count = pre.partition(".")
    return (*map(int, numbers.split(".")), pre == "", word, int(count or 0))


def found(root: Path) -> set[tuple[str, str]]:
    """Every place with the version that stands there."""
    places = set()
    for path, before, after in PLACES:
        text = (root / path).read_text()
        hits = re.findall(f"{before}({NUMBER})(?={after})", text)
        if not hits:
            raise SystemExit(f"{path}: no version behind `{before}`; correct PLACES in packaging/versions.py")
        places |= {(path, version) for _, version in hits}
    return places


def write(root: Path, version: str) -> None:
    """Writes the version into all places."""
    for path, before, after in PLACES:
        text = (root / path).read_text()
        (root / path).write_text(re.sub(f"{before}{NUMBER}(?={after})", rf"\g<1>{version}", text))
    other = {(path, it) for path, it in found(root) if it != version}
    assert not other, other


def _sections(root: Path) -> dict[str, str]:
    """The changelog's sections: the text under each heading."""
    parts = re.split(r"(?m)^## (.*)\n", (root / "CHANGELOG.md").read_text())
    return {head: text.strip() for head, text in zip(parts[1::2], parts[2::2])}


def is_released(root: Path, version: str) -> bool:
    """Whether the changelog has a section for it."""
    return any(head.split(" ")[0] == version for head in _sections(root))


def notes(root: Path, version: str) -> str:
    """The section of a released version, whose heading may have a date."""
    for head, text in _sections(root).items():
        if head.split(" ")[0] == version:
            return text + "\n"
    raise SystemExit(f"CHANGELOG.md has no section `## {version}`")


def fill_changelog(root: Path) -> None:
    """For a dry run right after a release: writes a line under Unreleased if there is none."""
    if _sections(root).get("Unreleased") == "":
        path = root / "CHANGELOG.md"
        path.write_text(path.read_text().replace("## Unreleased\n", "## Unreleased\n\n- Nothing yet.\n", 1))


def cut_changelog(root: Path, version: str, date: str) -> str:
    """Moves what is unreleased into a section of its own, unless that has been done. Returns that section's text."""
    path, sections = root / "CHANGELOG.md", _sections(root)
    if "Unreleased" not in sections:
        raise SystemExit("CHANGELOG.md has no section `## Unreleased`; add one at the top")
    is_cut = is_released(root, version)
    if is_cut and sections["Unreleased"]:
        raise SystemExit(f"CHANGELOG.md has both a section {version} and unreleased changes; move them, or choose another version")
    if not is_cut and not sections["Unreleased"]:
        raise SystemExit(f"CHANGELOG.md: nothing is unreleased; describe what {version} changes")
    if not is_cut:
        head = f"## Unreleased\n\n## {version} - {date}\n"
        path.write_text(path.read_text().replace("## Unreleased\n", head, 1))
    return notes(root, version)
