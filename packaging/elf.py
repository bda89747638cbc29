"""What a Linux program needs of its system: architecture, loader, libraries, and the version of glibc."""

import struct
from dataclasses import dataclass, field

ARCHITECTURES = {62: "x86_64", 183: "aarch64"}
# Names of the same architectures elsewhere.
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
OCI = DEBIAN

_PT_DYNAMIC, _PT_INTERP, _PT_LOAD = 2, 3, 1
_DT_NEEDED, _DT_STRTAB, _DT_VERNEED, _DT_VERNEEDNUM = 1, 5, 0x6FFFFFFE, 0x6FFFFFFF


class NotAProgram(ValueError):
    """The file is no 64-bit little-endian ELF program of a known architecture."""


@dataclass
class Needs:
    """Of a static program, `loader` is None and the rest is empty."""

    architecture: str
    loader: str | None = None
    libraries: list[str] = field(default_factory=list)
    versions: dict[str, list[str]] = field(default_factory=dict)
    """Symbol versions by library, such as `libc.so.6` to `GLIBC_2.34`."""

    @property
    def glibc(self) -> tuple[int, int] | None:
        """The oldest glibc that has every symbol."""
        names = [name for names in self.versions.values() for name in names if name.startswith("GLIBC_")]
        found = [tuple(int(part) for part in name[6:].split(".")[:2]) for name in names if name[6].isdigit()]
        return max(found, default=None)


def read(binary: bytes, name: str = "the file") -> Needs:
    """Reads the program headers and the dynamic section, which `strip` leaves in place."""
    if binary[:6] != b"\x7fELF\x02\x01":
        raise NotAProgram(f"{name} is no 64-bit Linux program; give the path of a built `wornpath`")
    (machine,) = struct.unpack_from("<H", binary, 18)
    if machine not in ARCHITECTURES:
        raise NotAProgram(f"{name} is for machine {machine}; known are {', '.join(ARCHITECTURES.values())}")
    needs = Needs(ARCHITECTURES[machine])
    (start,) = struct.unpack_from("<Q", binary, 32)
    size, count = struct.unpack_from("<HH", binary, 54)
    loads, dynamic = [], None
    for at in (start + number * size for number in range(count)):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", binary, at)
        if kind == _PT_LOAD:
            loads.append((address, offset, length))
        elif kind == _PT_INTERP:
            needs.loader = binary[offset : offset + length].rstrip(b"\0").decode()
        elif kind == _PT_DYNAMIC:
            dynamic = (offset, length)
    if dynamic:
        _read_dynamic(binary, dynamic, loads, needs)
    return needs


def _read_dynamic(binary, dynamic, loads, needs) -> None:
    def offset_of(address: int) -> int:
        return next(address - base + offset for base, offset, length in loads if base <= address < base + length)

    entries = [struct.unpack_from("<QQ", binary, at) for at in range(dynamic[0], sum(dynamic), 16)]
    values = {tag: value for tag, value in entries}
    strings = offset_of(values[_DT_STRTAB])

    def text(at: int) -> str:
        end = binary.index(b"\0", strings + at)
        return binary[strings + at : end].decode()

    needs.libraries = [text(value) for tag, value in entries if tag == _DT_NEEDED]
    if _DT_VERNEED not in values:
        return
    at = offset_of(values[_DT_VERNEED])
    for _ in range(values[_DT_VERNEEDNUM]):
        _, count, file, first, following = struct.unpack_from("<HHIII", binary, at)
        names, entry = [], at + first
        for _ in range(count):
            _, _, _, name, next_entry = struct.unpack_from("<IHHII", binary, entry)
            names.append(text(name))
            entry += next_entry
        needs.versions[text(file)] = sorted(names)
        at += following
