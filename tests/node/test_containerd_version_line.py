"""The version line that a config.toml without one gets from us: it goes with us, or cleanup says why it stays."""

from __future__ import annotations

import pytest

from tests.support.fake_node import CONFIG_TOML, FakeNode


@pytest.mark.parametrize("base", [b"# ask Jo\n", b"# ask Jo\n\n", b"", None])
@pytest.mark.parametrize("again", [False, True], ids=["cleanup", "run-and-cleanup"])
def test_a_file_of_comments_is_one_again_after_somebodys_comment_and_setting(
    node: FakeNode, base: bytes | None, *, again: bool
) -> None:
    if base is not None:
        node.write(CONFIG_TOML, base)
    assert node.do("run", "--no-daemon", engine="containerd").process.returncode == 0
    node.write(CONFIG_TOML, b"# since\n" + node.read(CONFIG_TOML) + b"[debug]\nlevel = 'warn' # theirs\n")
    if again:
        assert node.do("run", "--no-daemon", engine="containerd").process.returncode == 0
    run = node.do("uninstall", engine="containerd")
    assert run.process.returncode == 0, run.output
    assert node.read(CONFIG_TOML) == b"# since\n" + (base or b"") + b"[debug]\nlevel = 'warn' # theirs\n"
    assert "the version line" not in run.output


def test_a_version_line_that_others_need_by_now_stays_and_cleanup_says_so(node: FakeNode) -> None:
    node.write(CONFIG_TOML, b"# ask Jo\n")
    assert node.do("run", "--no-daemon", engine="containerd").process.returncode == 0
    node.write(CONFIG_TOML, node.read(CONFIG_TOML) + b"[plugins.'io.containerd.other']\na = 1\n")
    run = node.do("uninstall", engine="containerd")
    assert run.process.returncode == 0, run.output
    assert "the version line: plugins, which others wrote, would mean something else without it" in run.output
    assert node.read(CONFIG_TOML) == b"version = 2\n# ask Jo\n[plugins.'io.containerd.other']\na = 1\n"
