"""The parts of packaging that need no built program. `python3 -m unittest discover -s packaging`"""

import re
import struct
import tempfile
import tomllib
import unittest
from pathlib import Path

import archive
import elf
import product
import versions
import wheel

ROOT = product.ROOT


def read(path: str) -> str:
    return (ROOT / path).read_text()


class ElfTest(unittest.TestCase):
    def test_a_program_of_the_system_needs_its_libraries(self):
        needs = elf.read(Path("/bin/sh").resolve().read_bytes())
        self.assertIn("libc.so.6", needs.libraries)
        self.assertGreaterEqual(needs.glibc, (2, 2))
        self.assertTrue(Path(needs.loader).exists())

    def test_something_else_is_refused_by_name(self):
        with self.assertRaisesRegex(elf.NotAProgram, "README.md is no 64-bit Linux program"):
            elf.read((ROOT / "README.md").read_bytes(), "README.md")

    def test_a_static_program_runs_on_both_kinds_of_systems(self):
        head = b"\x7fELF\x02\x01".ljust(18, b"\0") + struct.pack("<H", 62)
        needs = elf.read(head.ljust(64, b"\0"))
        self.assertIsNone(needs.loader)
        self.assertEqual(wheel.tags(needs), ["manylinux_2_17_x86_64", "manylinux2014_x86_64", "musllinux_1_1_x86_64"])

    def test_the_newest_symbol_is_the_wheels_tag(self):
        versions = {"libc.so.6": ["GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.9"], "libm.so.6": ["GLIBC_2.29"]}
        needs = elf.Needs("x86_64", "/lib64/ld-linux-x86-64.so.2", ["libc.so.6", "libm.so.6"], versions)
        self.assertEqual(wheel.tags(needs), ["manylinux_2_34_x86_64"])

    def test_a_wheel_with_another_library_is_refused(self):
        needs = elf.Needs("x86_64", "/lib64/ld-linux-x86-64.so.2", ["libssl.so.3", "libc.so.6"], {"libc.so.6": ["GLIBC_2.34"]})
        with self.assertRaisesRegex(SystemExit, "libssl.so.3"):
            wheel.tags(needs)


class ArchiveTest(unittest.TestCase):
    def test_the_order_of_files_does_not_matter(self):
        one = {"a/b": archive.Entry(b"1"), "c": archive.program(b"2")}
        other = dict(reversed(one.items()))
        self.assertEqual(archive.tar(one, 1), archive.tar(other, 1))
        self.assertEqual(archive.zipped(one, 1, 9, last="c"), archive.zipped(other, 1, 9, last="c"))


class VersionsTest(unittest.TestCase):
    def test_versions_are_ordered(self):
        ordered = ["0.1.0-rc.1", "0.1.0-rc.2", "0.1.0", "0.1.1", "0.2.0", "0.10.0", "1.0.0"]
        self.assertEqual(sorted(reversed(ordered), key=versions.parse), ordered)
        with self.assertRaisesRegex(SystemExit, "`v1` is no version"):
            versions.parse("v1")

    def test_every_place_has_the_same_version(self):
        self.assertEqual({version for _, version in versions.found(ROOT)}, {product.version()})

    def repository(self, changelog: str) -> Path:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        root = Path(scratch.name)
        (root / "CHANGELOG.md").write_text(changelog)
        for path, _, _ in versions.PLACES:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(read(path))
        return root

    def test_a_version_is_written_everywhere_and_nothing_else_is_changed(self):
        root = self.repository("")
        versions.write(root, "7.8.9")
        self.assertEqual({version for _, version in versions.found(root)}, {"7.8.9"})
        for path, _, _ in versions.PLACES:
            restored = (root / path).read_text().replace("7.8.9", product.version())
            self.assertEqual(restored, read(path), path)

    def test_unreleased_changes_become_a_section(self):
        root = self.repository("# Changelog\n\n## Unreleased\n\n### Added\n\n- a\n\n## 0.1.0 - 2026-01-01\n\n- b\n")
        self.assertEqual(versions.cut_changelog(root, "0.2.0", "2026-02-02"), "### Added\n\n- a\n")
        text = "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-02-02\n\n### Added\n\n- a\n\n## 0.1.0 - 2026-01-01\n\n- b\n"
        self.assertEqual((root / "CHANGELOG.md").read_text(), text)
        self.assertEqual(versions.cut_changelog(root, "0.2.0", "2026-02-03"), "### Added\n\n- a\n", "once is enough")
        self.assertEqual((root / "CHANGELOG.md").read_text(), text)
        self.assertEqual(versions.notes(root, "0.1.0"), "- b\n")

    def test_a_release_without_changes_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "nothing is unreleased"):
            versions.cut_changelog(self.repository("## Unreleased\n\n## 0.1.0\n\n- b\n"), "0.2.0", "2026-02-02")


class RepositoryTest(unittest.TestCase):
    def test_all_packages_have_the_same_features(self):
        features = set(product.FEATURES.split(","))
        maturin = tomllib.loads(read("python/pyproject.toml"))["tool"]["maturin"]["features"]
        dockerfile = re.search(r"cargo install .*--features (\S+)", read("Dockerfile")).group(1).split(",")
        self.assertEqual((set(maturin), set(dockerfile)), (features, features))
        declared = set(tomllib.loads(read("crates/cli/Cargo.toml"))["features"]) - {"default"}
        default = set(tomllib.loads(read("crates/cli/Cargo.toml"))["features"]["default"])
        self.assertEqual(declared, features | default, "released programs have every feature")

    def test_every_published_crate_is_described(self):
        shared = tomllib.loads(read("Cargo.toml"))["workspace"]["package"]
        manifests = sorted((ROOT / "crates").glob("*/Cargo.toml"))
        self.assertGreater(len(manifests), 10)
        for path in manifests:
            package = tomllib.loads(path.read_text())["package"]
            self.assertNotIn("publish", package, path)
            for key in ("license", "repository", "readme", "keywords", "categories"):
                value = package.get(key)
                self.assertTrue(shared[key] if value == {"workspace": True} else value, f"{path}: {key}")
            self.assertGreater(len(package["description"]), 15, path)
        self.assertLessEqual(len(shared["keywords"]), 5)
        self.assertTrue(all(len(word) <= 20 for word in shared["keywords"]))

    def test_a_crate_is_built_from_files_inside_of_it(self):
        included = re.compile(r'include_(?:str|bytes)!\(\s*"([^"]+)"')
        for path in sorted((ROOT / "crates").glob("*/src/**/*.rs")):
            crate = ROOT / "crates" / path.relative_to(ROOT / "crates").parts[0]
            code = path.read_text().split("#[cfg(test)]")[0] if path.name != "tests.rs" else ""
            for name in included.findall(code):
                target = Path(f"{path.parent}/{name}")
                inside = Path(re.sub(r"[^/]+/\.\./", "", str(target))) if ".." in name else target
                while ".." in str(inside):
                    inside = Path(re.sub(r"[^/]+/\.\./", "", str(inside), count=1))
                self.assertTrue(str(inside).startswith(f"{crate}/"), f"{path} includes {name}, which is not published with it")
                self.assertTrue(target.exists(), f"{path} includes {name}")

    def test_workflows_call_scripts_that_exist(self):
        workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))
        called = {name for path in workflows for name in re.findall(r"(?<![\w/])(packaging/\w+|\.ci/\w+)", path.read_text())}
        self.assertLessEqual({".ci/run", "packaging/build", "packaging/package", "packaging/check", "packaging/notes"}, called)
        for name in called:
            self.assertTrue((ROOT / name).stat().st_mode & 0o100, f"{name} is no program")

    def test_the_packaged_unit_has_the_packaged_path(self):
        import deb

        made = product.Product(
            version="0", epoch=0, revision="", level=1, needs=elf.Needs("x86_64"), binary=b"", sbom=b"", man={}, completions={}
        )
        unit = deb.files(made)["usr/lib/systemd/system/wornpath.service"].data.decode()
        self.assertIn("\nExecStart=/usr/bin/wornpath serve --config /etc/wornpath/wornpath.yaml\n", unit)


if __name__ == "__main__":
    unittest.main()
