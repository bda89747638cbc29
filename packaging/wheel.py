"""The wheel: the program as a script, the Python package, manual and completions. `pip install wornpath`."""

import base64
import hashlib
import tomllib
from pathlib import Path

import elf
from archive import Entry, Tree, zipped
from product import ROOT, Product

# What the manylinux policies let a program expect of a system with glibc.
SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1"}


def tags(needs: elf.Needs) -> list[str]:
    """The platforms that the program runs on, by PEP 600 and PEP 656. A static program runs on both kinds."""
    if needs.loader is None:
        return [f"{system}_{needs.architecture}" for system in ("manylinux_2_17", "manylinux2014", "musllinux_1_1")]
    foreign = [name for name in needs.libraries if name not in SYSTEM_LIBRARIES and not name.startswith("ld-linux")]
    if foreign or needs.glibc is None:
        raise SystemExit(f"the program needs {', '.join(foreign) or 'no glibc'}; a wheel may need only {', '.join(sorted(SYSTEM_LIBRARIES))}")
    major, minor = needs.glibc
    return [f"manylinux_{major}_{max(minor, 17)}_{needs.architecture}"]


def _metadata(project: dict) -> str:
    lines = ["Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {project['version']}", f"Summary: {project['description']}"]
    lines += [f"Keywords: {','.join(project['keywords'])}", f"License-Expression: {project['license']}", "License-File: LICENSE"]
    lines += [f"Classifier: {it}" for it in project["classifiers"]]
    lines += [f"Project-URL: {name}, {url}" for name, url in project["urls"].items()]
    lines += [f"Requires-Python: {project['requires-python']}"]
    lines += [f"Requires-Dist: {it}" for it in project["dependencies"]]
    for extra, needed in project["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}"] + [f'Requires-Dist: {it}; extra == "{extra}"' for it in needed]
    lines += ["Description-Content-Type: text/markdown", "", (ROOT / "python" / project["readme"]).read_text()]
    return "\n".join(lines)


def package_files() -> Tree:
    """The Python package, without what running it leaves behind."""
    folder = ROOT / "python"
    wanted = (path for path in sorted((folder / "wornpath").rglob("*")) if path.suffix in (".py", ".typed") or path.name == "py.typed")
    return {str(path.relative_to(folder)): Entry(path.read_bytes()) for path in wanted}


def build(product: Product) -> tuple[str, bytes]:
    project = tomllib.loads((ROOT / "python/pyproject.toml").read_text())["project"]
    if project["version"] != product.version:
        raise SystemExit(f"python/pyproject.toml has version {project['version']}, and the program {product.version}; make them equal")
    name = f"wornpath-{product.version}"
    data, info = f"{name}.data", f"{name}.dist-info"
    platforms = tags(product.needs)
    tree = package_files() | product.installed_program(f"{data}/scripts/wornpath")
    tree |= product.manual(f"{data}/data/share/man/man1")
    places = {"wornpath": "bash-completion/completions", "_wornpath": "zsh/site-functions", "wornpath.fish": "fish/vendor_completions.d"}
    tree |= {f"{data}/data/share/{places[file]}/{file}": Entry(text) for file, text in product.completions.items()}
    wheel = ["Wheel-Version: 1.0", "Generator: packaging/wheel.py", "Root-Is-Purelib: false"]
    wheel += [f"Tag: py3-none-{platform}" for platform in platforms]
    tree[f"{info}/METADATA"] = Entry(_metadata(project).encode())
    tree[f"{info}/WHEEL"] = Entry("\n".join([*wheel, ""]).encode())
    tree[f"{info}/licenses/LICENSE"] = Entry((ROOT / "LICENSE").read_bytes())
    tree[f"{info}/sboms/wornpath.cdx.json"] = Entry(product.sbom)
    tree[f"{info}/RECORD"] = Entry(_record(tree, f"{info}/RECORD"))
    file = f"{name}-py3-none-{'.'.join(platforms)}.whl"
    return file, zipped(tree, product.epoch, product.level, last=info)


def _record(tree: Tree, own: str) -> bytes:
    def row(path: str, entry: Entry) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(entry.data).digest()).rstrip(b"=").decode()
        return f"{path},sha256={digest},{len(entry.data)}\n"

    return ("".join(row(path, tree[path]) for path in sorted(tree)) + f"{own},,\n").encode()


def write(product: Product, folder: Path) -> Path:
    name, data = build(product)
    (folder / name).write_bytes(data)
    return folder / name
