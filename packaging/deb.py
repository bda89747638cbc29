"""The Debian package: program, systemd unit, manual, completions, profiles and a configuration to begin with.

Installing it starts nothing: `systemctl enable --now wornpath` does, once the configuration names pods. An upgrade
restarts a router that runs.
"""

import hashlib
from pathlib import Path

import elf
from archive import Entry, Tree, ar, gzipped, program, tar
from product import ROOT, Product

CONFIGURATION = "etc/wornpath/wornpath.yaml"
LIBRARIES = {"libgcc_s.so.1": "libgcc-s1"}
HERE = Path(__file__).resolve().parent / "debian"


def _depends(needs: elf.Needs) -> str:
    if needs.glibc is None:
        return ""
    others = [LIBRARIES[name] for name in needs.libraries if name in LIBRARIES]
    return ", ".join([f"libc6 (>= {needs.glibc[0]}.{needs.glibc[1]})", *others])


def files(product: Product) -> Tree:
    """What is installed."""
    unit = (ROOT / "deploy/systemd/wornpath.service").read_text()
    tree = product.installed_program("usr/bin/wornpath")
    tree["usr/lib/systemd/system/wornpath.service"] = Entry(unit.replace("/usr/local/bin/", "/usr/bin/").encode())
    tree[CONFIGURATION] = Entry((HERE / "wornpath.yaml").read_bytes())
    tree |= product.manual("usr/share/man/man1") | product.profiles("usr/share/wornpath/profiles")
    places = {"wornpath": "bash-completion/completions", "_wornpath": "zsh/vendor-completions", "wornpath.fish": "fish/vendor_completions.d"}
    tree |= {f"usr/share/{places[file]}/{file}": Entry(text) for file, text in product.completions.items()}
    documents = "usr/share/doc/wornpath"
    tree[f"{documents}/copyright"] = Entry((HERE / "copyright").read_bytes())
    tree[f"{documents}/changelog.gz"] = Entry(gzipped((ROOT / "CHANGELOG.md").read_bytes(), 9))
    tree[f"{documents}/sbom.cdx.json"] = Entry(product.sbom)
    return tree


def build(product: Product) -> tuple[str, bytes]:
    tree = files(product)
    architecture = elf.DEBIAN[product.needs.architecture]
    depends = _depends(product.needs)
    control = [
        "Package: wornpath",
        # A pre-release sorts before its release.
        f"Version: {product.version.replace('-', '~')}",
        f"Architecture: {architecture}",
        "Maintainer: the authors of wornpath <maintainers@users.noreply.github.com>",
        *([f"Depends: {depends}"] if depends else []),
        "Recommends: ca-certificates",
        f"Installed-Size: {sum(-(-len(entry.data) // 1024) for entry in tree.values())}",
        "Section: net",
        "Priority: optional",
        "Description: router for LLM inference",
        " Sends each request to the engine whose KV cache already holds the prefix of its",
        " prompt, weighed against load. Speaks the APIs of OpenAI and Anthropic, follows the",
        " cache events of vLLM and SGLang, and runs batches.",
        "",
    ]
    sums = "".join(f"{hashlib.md5(tree[path].data).hexdigest()}  {path}\n" for path in sorted(tree) if path != CONFIGURATION)
    inside = {
        "./control": Entry("\n".join(control).encode()),
        "./conffiles": Entry(f"/{CONFIGURATION}\n".encode()),
        "./md5sums": Entry(sums.encode()),
    }
    inside |= {f"./{name}": program((HERE / name).read_bytes()) for name in ("postinst", "prerm", "postrm")}
    members = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.gz", gzipped(tar(inside, product.epoch), product.level)),
        ("data.tar.gz", gzipped(tar(tree, product.epoch, prefix="./"), product.level)),
    ]
    return f"wornpath_{product.version.replace('-', '~')}_{architecture}.deb", ar(members, product.epoch)


def write(product: Product, folder: Path) -> Path:
    name, data = build(product)
    (folder / name).write_bytes(data)
    return folder / name
