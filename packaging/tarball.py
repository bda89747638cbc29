"""The tarball: one folder with the program and what belongs to it, for any system with its libraries."""

from pathlib import Path

from archive import Entry, gzipped, tar
from product import ROOT, Product


def build(product: Product) -> tuple[str, bytes]:
    needs = product.needs
    name = f"wornpath-{product.version}-{needs.architecture}-linux-{'gnu' if needs.loader else 'static'}"
    tree = product.installed_program("bin/wornpath") | product.profiles("share/wornpath/profiles")
    tree |= product.manual("share/man/man1") | product.documents("share/doc/wornpath")
    tree |= {f"share/completions/{file}": Entry(text) for file, text in product.completions.items()}
    for path in ("CHANGELOG.md", "wornpath.example.yaml", "deploy/systemd/wornpath.service"):
        tree[f"share/doc/wornpath/{Path(path).name}"] = Entry((ROOT / path).read_bytes())
    return f"{name}.tar.gz", gzipped(tar(tree, product.epoch, prefix=f"{name}/"), product.level)


def write(product: Product, folder: Path) -> Path:
    name, data = build(product)
    (folder / name).write_bytes(data)
    return folder / name
