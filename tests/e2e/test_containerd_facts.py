"""What docs/containerd.md says of versions and imports, asked of the real binaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.containerd_binaries import Binary, dump, table

if TYPE_CHECKING:
    from pathlib import Path

CRI, GRPC, RUNTIME = "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
REFUSED = "refused"
KNOWN = ("1.6", "1.7", "2.1", "2.4")

TABLES = {
    # version: what 1.6, 1.7, 2.1 and 2.4 read, the first of which counts
    None: ([CRI], [CRI], [RUNTIME], [RUNTIME, CRI, GRPC]),
    1: ([CRI], [CRI], [RUNTIME], [RUNTIME, CRI, GRPC]),
    2: ([GRPC], [GRPC], [RUNTIME, GRPC], [RUNTIME, GRPC]),
    3: ([GRPC], REFUSED, [RUNTIME], [RUNTIME, GRPC]),
    4: ([GRPC], REFUSED, REFUSED, [RUNTIME]),
    5: ([GRPC], REFUSED, REFUSED, REFUSED),
}


def column(binary: Binary) -> int:
    return KNOWN.index(binary.release) if binary.release in KNOWN else len(KNOWN) - 1


def text(plugin: str, name: str, *, version: int | None = 2, imports: tuple[str, ...] = (), more: str = "") -> bytes:
    """Return a file whose plugin has one runtime of this name, its default."""
    lines = [] if version is None else [f"version = {version}"]
    if imports:
        lines.append(f"imports = {list(imports)}")
    place = f'plugins."{plugin}".containerd'
    lines += [f"[{place}]", f'default_runtime_name = "{name}"', f"[{place}.runtimes.{name}]"]
    lines += ['runtime_type = "io.containerd.runc.v2"', more]
    return "\n".join(lines).encode()


@pytest.mark.parametrize("version", TABLES, ids=str)
@pytest.mark.parametrize("plugin", [CRI, GRPC, RUNTIME])
def test_a_version_decides_which_table_counts(
    version: int | None, plugin: str, binaries: list[Binary], tmp_path: Path
) -> None:
    for binary in binaries:
        expected = TABLES[version][column(binary)]
        short = plugin == CRI and version not in (None, 1)
        if expected == REFUSED or (short and binary.release.startswith("1.")):
            assert dump(binary, {"config.toml": text(plugin, "mine", version=version)}, tmp_path) is None, binary
            continue
        read = dump(binary, {"config.toml": text(plugin, "mine", version=version)}, tmp_path)
        assert read is not None, binary
        assert ("mine" in table(read)["runtimes"]) == (plugin in expected), binary
        assert (table(read)["default_runtime_name"] == "mine") == (plugin in expected), binary


@pytest.mark.parametrize("version", [2, 3])
def test_the_newer_name_hides_the_older_ones_runtimes(version: int, binaries: list[Binary], tmp_path: Path) -> None:
    both = text(GRPC, "old", version=version) + b"\n" + text(RUNTIME, "new", version=None)
    for binary in binaries:
        expected = TABLES[version][column(binary)]
        read = dump(binary, {"config.toml": both}, tmp_path)
        assert (read is None) == (expected == REFUSED), binary
        if read is not None:
            assert table(read)["runtimes"].keys() - {"runc"} == {"new" if RUNTIME in expected else "old"}, binary


def deep(binary: Binary) -> bool:
    return not binary.release.startswith(("1.", "2.0"))


IMPORTS: dict[str, tuple[tuple[str, ...], dict[str, tuple[str, ...]], str]] = {
    # files beside the root: (the root's imports, the files, the last that counts)
    "relative": (("a.toml",), {"a.toml": ()}, "a"),
    "in the list's order": (("b.toml", "a.toml", "b.toml"), {"a.toml": (), "b.toml": ()}, "a"),
    "level by level": (("a.toml", "b.toml"), {"a.toml": ("n.toml",), "b.toml": (), "n.toml": ()}, "n"),
    "relative to its own file": (("s/a.toml",), {"s/a.toml": ("b.toml",), "s/b.toml": ()}, "b"),
    "a circle": (("a.toml",), {"a.toml": ("config.toml",)}, "a"),
    "a pattern, sorted": (("/etc/containerd/d/*.toml",), {"d/b.toml": (), "d/a.toml": ()}, "b"),
    "a hidden file": (("/etc/containerd/d/*",), {"d/.z.toml": ()}, "z"),
    "a pattern's set": (("/etc/containerd/d/[^b]*.toml",), {"d/a.toml": (), "d/b.toml": ()}, "a"),
    "a pattern for nothing": (("/etc/containerd/none/*.toml",), {}, "root"),
}


@pytest.mark.parametrize("name", IMPORTS)
def test_the_last_file_that_has_the_table_counts(name: str, binaries: list[Binary], tmp_path: Path) -> None:
    imports, others, last = IMPORTS[name]
    files = {
        path: text(GRPC, path.rpartition("/")[2].strip(".").partition(".")[0], imports=inner)
        for path, inner in others.items()
    }
    files["config.toml"] = text(GRPC, "root", imports=imports)
    for binary in binaries:
        read = dump(binary, files, tmp_path / str(binary))
        assert read is not None, binary
        assert table(read)["default_runtime_name"] == last, binary
        assert ("root" in table(read)["runtimes"]) == (deep(binary) or last == "root"), binary


@pytest.mark.parametrize("pattern", ["?.toml", "[a].toml", "gone.toml"])
def test_without_a_star_a_path_is_literal_and_has_to_be_there(
    pattern: str, binaries: list[Binary], tmp_path: Path
) -> None:
    files = {"config.toml": text(GRPC, "root", imports=(pattern,)), "a.toml": text(GRPC, "a")}
    for binary in binaries:
        read = dump(binary, files, tmp_path / str(binary))
        assert (read is None) == (not deep(binary)), binary
        assert read is None or "a" not in table(read)["runtimes"], binary


def test_a_relative_pattern_is_not_relative_to_the_file_in_1_6(binaries: list[Binary], tmp_path: Path) -> None:
    files = {"config.toml": text(GRPC, "root", imports=("d/*.toml",)), "d/a.toml": text(GRPC, "a")}
    for binary in binaries:
        read = dump(binary, files, tmp_path / str(binary))
        assert read is not None
        assert ("a" in table(read)["runtimes"]) == (binary.release != "1.6"), binary


LINKS = {
    # where the link a.toml leads to, and the file that counts for 1.x and 2.x: b.toml, the root as b.toml is not read
    # (the daemon itself does not start then), or None, as the files are refused
    "b.toml": ("b", "b"),
    "../config.toml": ("b", "b"),
    "nowhere": (None, "root"),
    "a.toml": (None, None),
}


@pytest.mark.parametrize("target", LINKS)
def test_a_link_that_a_pattern_matches_is_read_as_one_more_file(
    target: str, binaries: list[Binary], tmp_path: Path
) -> None:
    files = {
        "config.toml": text(GRPC, "root", imports=("/etc/containerd/d/*.toml",)),
        "d/b.toml": text(GRPC, "b"),
    }
    for binary in binaries:
        folder = tmp_path / str(binary)
        (folder / "d").mkdir(parents=True)
        (folder / "d/a.toml").symlink_to(target)
        (folder / "d/c.toml").symlink_to("b.toml")
        read = dump(binary, files, folder)
        counts = table(read)["default_runtime_name"] if read is not None else None
        assert counts == LINKS[target][deep(binary)], binary


def test_an_earlier_file_counts_where_a_link_names_it_last(binaries: list[Binary], tmp_path: Path) -> None:
    files = {
        "config.toml": text(GRPC, "root", imports=("/etc/containerd/d/*.toml",)),
        "d/a.toml": text(GRPC, "a"),
        "d/b.toml": text(GRPC, "b"),
    }
    for binary in binaries:
        folder = tmp_path / str(binary)
        (folder / "d").mkdir(parents=True)
        (folder / "d/c.toml").symlink_to("a.toml")
        read = dump(binary, files, folder)
        assert read is not None
        assert table(read)["default_runtime_name"] == "a", binary
        assert ("b" in table(read)["runtimes"]) == deep(binary), binary


def test_a_false_value_of_a_later_file_counts(binaries: list[Binary], tmp_path: Path) -> None:
    option = f'[plugins."{GRPC}".containerd.runtimes.runc.options]\nSystemdCgroup = '
    files = {
        "config.toml": text(GRPC, "runc", imports=("a.toml",), more=f"{option}true"),
        "a.toml": f"version = 2\n{option}false\n".encode(),
    }
    for binary in binaries:
        read = dump(binary, files, tmp_path / str(binary))
        assert read is not None
        assert table(read)["runtimes"]["runc"]["options"]["SystemdCgroup"] is False, binary


def test_files_of_several_versions_go_by_the_last_one_until_2_3(binaries: list[Binary], tmp_path: Path) -> None:
    files = {"config.toml": text(GRPC, "root", imports=("a.toml",)), "a.toml": text(RUNTIME, "a", version=3)}
    for binary in binaries:
        read = dump(binary, files, tmp_path / str(binary))
        if binary.release == "1.7":
            assert read is None
            continue
        assert read is not None
        kept = "root" in table(read)["runtimes"]
        assert kept == (binary.release == "1.6" or column(binary) == len(KNOWN) - 1), binary


def test_the_short_name_is_disabled_in_version_1_only(binaries: list[Binary], tmp_path: Path) -> None:
    for binary in binaries:
        assert dump(binary, {"config.toml": b'disabled_plugins = ["cri"]\n'}, tmp_path) is not None
        assert dump(binary, {"config.toml": b'version = 2\ndisabled_plugins = ["cri"]\n'}, tmp_path) is None


def test_2_x_takes_a_snapshotter_over_only_beside_runtimes(binaries: list[Binary], tmp_path: Path) -> None:
    line = f'version = 2\n[plugins."{GRPC}".containerd]\nsnapshotter = "native"\n'
    beside = f'[plugins."{GRPC}".containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
    for binary in [each for each in binaries if deep(each)]:
        for content, expected in ((line, "overlayfs"), (line + beside, "native")):
            read = dump(binary, {"config.toml": content.encode()}, tmp_path)
            assert read is not None
            assert read["plugins"]["io.containerd.cri.v1.images"]["snapshotter"] == expected, binary
