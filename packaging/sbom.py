"""What the program is made of: a CycloneDX document, and the section that `cargo auditable` would add to the binary.

`cargo tree` says which crates are built for the features of a release, `cargo metadata` their licences and dependencies,
`Cargo.lock` their checksums.
"""

import json
import subprocess
import tomllib
import uuid
import zlib
from pathlib import Path

ROOT_CRATE = "wornpath"


def _cargo(root: Path, *arguments: str) -> str:
    # As for a build: a lock file that does not fit is an error, not a reason to write another.
    result = subprocess.run(["cargo", *arguments, "--locked"], cwd=root, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        raise RuntimeError(f"cargo {arguments[0]} failed: {result.stderr.strip()}")
    return result.stdout


def _built(root: Path, target: str, features: str, edges: str) -> set[tuple[str, str]]:
    arguments = ["-p", ROOT_CRATE, "--target", target, "--features", features, "--prefix", "none", "--format", "{p}"]
    lines = _cargo(root, "tree", "--edges", edges, *arguments).splitlines()
    words = (line.split() for line in lines if line)
    return {(name, version.removeprefix("v")) for name, version, *_ in words}


class Components:
    """The crates of the program, sorted by name and version."""

    def __init__(self, root: Path, target: str, features: str):
        metadata = json.loads(_cargo(root, "metadata", "--format-version", "1", "--filter-platform", target))
        lock = tomllib.loads((root / "Cargo.lock").read_text())
        self.checksums = {(it["name"], it["version"]): it.get("checksum") for it in lock["package"]}
        linked = _built(root, target, features, "normal")
        built = _built(root, target, features, "normal,build")
        packages = {package["id"]: package for package in metadata["packages"]}
        key = {id: (it["name"], it["version"]) for id, it in packages.items()}
        ids = sorted((id for id in packages if key[id] in built), key=lambda id: key[id])
        self.packages = [packages[id] for id in ids]
        self.is_linked = [key[id] in linked for id in ids]
        place = {id: at for at, id in enumerate(ids)}
        nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
        self.dependencies = [sorted(_needed(nodes[id], place)) for id in ids]
        self.root = next(at for at, it in enumerate(self.packages) if it["name"] == ROOT_CRATE)


def _needed(node, place) -> set[int]:
    kinds = {dep["pkg"]: {kind["kind"] for kind in dep["dep_kinds"]} for dep in node["deps"]}
    return {place[id] for id, kind in kinds.items() if id in place and kind != {"dev"}}


def auditable(components: Components) -> bytes:
    """The contents of the section `.dep-v0`, which scanners of binaries read."""
    rows = []
    for at, package in enumerate(components.packages):
        row = {"name": package["name"], "version": package["version"]}
        row["source"] = "crates.io" if package["source"] else "local"
        if not components.is_linked[at]:
            row["kind"] = "build"
        if components.dependencies[at]:
            row["dependencies"] = components.dependencies[at]
        if at == components.root:
            row["root"] = True
        rows.append(row)
    return zlib.compress(json.dumps({"packages": rows}, separators=(",", ":")).encode(), 9)


def listed(section: bytes) -> list[dict]:
    """The packages of a section `.dep-v0`."""
    return json.loads(zlib.decompress(section))["packages"]


def cyclonedx(components: Components, version: str, time: str) -> bytes:
    """CycloneDX 1.5, as JSON. Its serial number follows from its contents."""

    def purl(package) -> str:
        return f"pkg:cargo/{package['name']}@{package['version']}"

    def component(at: int) -> dict:
        package = components.packages[at]
        row = {"type": "library", "bom-ref": purl(package), "name": package["name"], "version": package["version"]}
        row["purl"] = purl(package)
        row["scope"] = "required" if components.is_linked[at] else "excluded"
        checksum = components.checksums.get((package["name"], package["version"]))
        if checksum:
            row["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        if package["license"]:
            row["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        if package["repository"]:
            row["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
        return row

    root = components.packages[components.root]
    main = component(components.root) | {"type": "application", "name": "wornpath", "version": version}
    main.pop("scope")
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": time, "component": main},
        "components": [component(at) for at in range(len(components.packages)) if at != components.root],
        "dependencies": [
            {"ref": purl(package), "dependsOn": [purl(components.packages[it]) for it in components.dependencies[at]]}
            for at, package in enumerate(components.packages)
        ],
    }
    assert purl(root) == main["bom-ref"]
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True))
    return json.dumps({"serialNumber": f"urn:uuid:{serial}"} | document, indent=1).encode() + b"\n"
