"""The container image, from scratch: the program, the libraries that it needs, CAs and profiles; no shell, no packages.

Written as an OCI layout in a tar, without a daemon: `podman load -i`, `docker load -i`, or `skopeo copy oci-archive:…`.
The first layer (libraries, CAs) changes rarely, the second is the program.
"""

import json
from pathlib import Path

import elf
from archive import Entry, Tree, gzipped, program, sha256, tar
from product import Product, timestamp

USER = 10001
CA_FILE = Path("/etc/ssl/certs/ca-certificates.crt")
FOLDERS = [Path(it) for it in ("/lib/{0}-linux-gnu", "/usr/lib/{0}-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib")]


def _library(name: str, architecture: str) -> Path:
    for folder in FOLDERS:
        path = Path(str(folder).format(architecture)) / name
        if path.is_file():
            return path
    raise SystemExit(f"the program needs {name}, which this machine does not have; build the image where it is installed")


def base(needs: elf.Needs) -> Tree:
    """What the program needs to run. glibc is this machine's; since 2.34 it resolves names without further libraries."""
    tree = {
        "etc/passwd": Entry(f"root:x:0:0:root:/:/sbin/nologin\nwornpath:x:{USER}:{USER}::/:/sbin/nologin\n".encode()),
        "etc/group": Entry(f"root:x:0:\nwornpath:x:{USER}:\n".encode()),
        "etc/nsswitch.conf": Entry(b"hosts: files dns\n"),
        # For `ca: system`, and commands that call https:// addresses.
        str(CA_FILE).lstrip("/"): Entry(_certificates()),
    }
    if needs.loader is not None:
        tree[needs.loader.lstrip("/")] = program(Path(needs.loader).read_bytes())
    rest, done = list(needs.libraries), {Path(needs.loader or "").name}
    while rest:
        name = rest.pop()
        if name in done:
            continue
        done.add(name)
        data = _library(name, needs.architecture).read_bytes()
        # The loader looks here without a cache or a setting.
        tree[f"lib/{name}"] = program(data)
        rest += elf.read(data, name).libraries
    return tree


def _certificates() -> bytes:
    if not CA_FILE.is_file():
        raise SystemExit(f"{CA_FILE} is missing; install ca-certificates")
    return CA_FILE.read_bytes()


def layers(product: Product) -> list[bytes]:
    """Uncompressed tars, lowest first."""
    own = product.installed_program("usr/local/bin/wornpath") | product.profiles("usr/share/wornpath/profiles")
    own |= product.documents("usr/share/doc/wornpath")
    folders = {"tmp": 0o1777, "var/tmp": 0o1777, "etc/wornpath": 0o755}
    return [tar(base(product.needs), product.epoch, folders), tar(own, product.epoch)]


def config(product: Product, tars: list[bytes]) -> dict:
    created = timestamp(product.epoch)
    return {
        "created": created,
        "architecture": elf.OCI[product.needs.architecture],
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "ExposedPorts": {"8080/tcp": {}},
            "Env": ["PATH=/usr/local/bin", f"SSL_CERT_FILE={CA_FILE}"],
            "Entrypoint": ["/usr/local/bin/wornpath"],
            "Cmd": ["serve", "--config", "/etc/wornpath/wornpath.yaml"],
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "wornpath",
                "org.opencontainers.image.description": "Routes LLM requests to the pod whose KV cache already holds their prefix",
                "org.opencontainers.image.licenses": "Apache-2.0",
                "org.opencontainers.image.version": product.version,
                "org.opencontainers.image.revision": product.revision,
                "org.opencontainers.image.created": created,
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer)}" for layer in tars]},
        "history": [
            {"created": created, "created_by": "packaging/image.py", "comment": comment}
            for comment in ("libraries and certificate authorities", "wornpath")
        ],
    }


def build(product: Product) -> tuple[str, bytes]:
    blobs: dict[str, bytes] = {}

    def blob(kind: str, data: bytes) -> dict:
        digest = sha256(data)
        blobs[digest] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    tars = layers(product)
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("config.v1+json", json.dumps(config(product, tars)).encode()),
        "layers": [blob("layer.v1.tar+gzip", gzipped(layer, product.level)) for layer in tars],
    }
    name = {"org.opencontainers.image.ref.name": product.version, "io.containerd.image.name": f"wornpath:{product.version}"}
    described = blob("manifest.v1+json", json.dumps(manifest).encode())
    architecture = elf.OCI[product.needs.architecture]
    described |= {"platform": {"architecture": architecture, "os": "linux"}, "annotations": name}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [described]}
    layout: Tree = {f"blobs/sha256/{digest}": Entry(data) for digest, data in blobs.items()}
    layout["oci-layout"] = Entry(b'{"imageLayoutVersion":"1.0.0"}')
    layout["index.json"] = Entry(json.dumps(index).encode())
    return f"wornpath-{product.version}-{architecture}.oci.tar", tar(layout, product.epoch)


def write(product: Product, folder: Path) -> Path:
    name, data = build(product)
    (folder / name).write_bytes(data)
    return folder / name
