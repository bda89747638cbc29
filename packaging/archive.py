"""Archives whose bytes depend on their contents alone: sorted names, fixed owners, one time for all files."""

import gzip
import hashlib
import io
import tarfile
import zipfile
from dataclasses import dataclass
from time import gmtime


@dataclass(frozen=True)
class Entry:
    """A file, or with `target` a symbolic link."""

    data: bytes = b""
    mode: int = 0o644
    target: str | None = None


Tree = dict[str, Entry]
"""Files by path, without a leading slash. Folders are made as needed."""


def program(data: bytes) -> Entry:
    return Entry(data, 0o755)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def gzipped(data: bytes, level: int) -> bytes:
    """Without a name or a time in the header."""
    return gzip.compress(data, compresslevel=level, mtime=0)


def tar(tree: Tree, epoch: int, folders: dict[str, int] | None = None, prefix: str = "") -> bytes:
    """A tar of root's files. `folders` are those that are made even if empty, with their modes."""
    modes = {"": 0o755} if prefix else {}
    for path in tree:
        parts = path.split("/")[:-1]
        modes |= {"/".join(parts[: at + 1]): 0o755 for at in range(len(parts))}
    modes |= folders or {}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted({*modes, *tree}):
            info = tarfile.TarInfo(prefix + path)
            info.mtime = epoch
            info.uname = info.gname = "root"
            if path in modes:
                info.type, info.mode = tarfile.DIRTYPE, modes[path]
                archive.addfile(info)
                continue
            entry = tree[path]
            info.mode = entry.mode
            if entry.target is not None:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.target, 0o777
                archive.addfile(info)
            else:
                info.size = len(entry.data)
                archive.addfile(info, io.BytesIO(entry.data))
    return out.getvalue()


def zipped(tree: Tree, epoch: int, level: int, last: str) -> bytes:
    """A zip. `last` is a folder whose files come last, which lets tools find a wheel's metadata fast."""
    out = io.BytesIO()
    # The format knows no time before 1980.
    time = max(gmtime(epoch)[:6], (1980, 1, 1, 0, 0, 0))
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        for path in sorted(tree, key=lambda path: (path.startswith(last), path)):
            info = zipfile.ZipInfo(path, time)
            info.create_system = 3
            info.external_attr = (0o100000 | tree[path].mode) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, tree[path].data)
    return out.getvalue()


def ar(members: list[tuple[str, bytes]], epoch: int) -> bytes:
    """The outer format of Debian packages."""
    out = b"!<arch>\n"
    for name, data in members:
        out += f"{name:<16}{epoch:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
        out += data + b"\n" * (len(data) % 2)
    return out
