"""Whatever a program quotes of the files and command lines that this process has read is hidden in its words."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from toolkit_installer import foreign_words
from toolkit_installer.documents.masking import MASK, DocumentMasker
from toolkit_installer.node import reading

SECRET = "Xq7vResQ"  # noqa: S105


@pytest.fixture(autouse=True)
def _nothing_was_read_before() -> Iterator[None]:
    for known in (reading.cached_files, reading.cached_commands, reading.cached_environments):
        known.clear()
    yield
    for known in (reading.cached_files, reading.cached_commands, reading.cached_environments):
        known.clear()


def _said() -> set[str]:
    return {foreign_words.mask_program_text(f"bad {SECRET} here"), foreign_words.mask_own_text(f"bad {SECRET} here")}


def test_a_value_of_a_large_file_is_hidden() -> None:
    lines = "".join(f'key{number} = "{number} of many"\n' for number in range(30_000))
    reading.cache_file("/etc/containerd/config.toml", f'{lines}token = "{SECRET}"\n'.encode())
    assert _said() == {f"bad {MASK} here"}


def test_a_value_is_hidden_however_many_files_and_processes_come_after_it() -> None:
    reading.cache_file("/etc/containerd/config.toml", f'token = "{SECRET}"\n'.encode())
    for number in range(500):
        reading.cache_file(f"/etc/containerd/conf.d/{number}.toml", b"version = 3\n")
    assert _said() == {f"bad {MASK} here"}
    reading.cached_files.clear()
    reading.cache_command(1, ("dockerd", "--log-opt", f"splunk-token={SECRET}"))
    for number in range(500):
        reading.cache_command(number + 2, ("containerd-shim-runc-v2", "-id", str(number)))
    assert _said() == {f"bad {MASK} here"}


@pytest.mark.parametrize(
    "words",
    [
        ("/usr/bin/python3", "/usr/local/bin/toolkit-installer", "run", "--cleanup", "never"),
        ("/usr/bin/python3", "-I", "-S", "/opt/toolkit_installer/node/interpreter.py", "toolkit-installer", "never"),
    ],
    ids=["a run", "woken"],
)
def test_the_words_of_our_own_runs_are_no_secrets(words: tuple[str, ...]) -> None:
    said = "`kubectl -n gpu exec pod7x -- toolkit-installer refresh` puts it right; --cleanup never"
    reading.cache_command(7, words)
    reading.cache_environment(7, {"DAEMONSET_NAME": "toolkit-installer", "HOSTNAME": "pod7x", "CLEANUP": "never"})
    assert foreign_words.mask_own_text(said) == said
    assert foreign_words.mask_program_text(said) == said


def test_files_are_forgotten_once_they_are_more_than_memory_is_for() -> None:
    for number in range(20):
        reading.cache_file(f"/{number}", b"x" * 1_000_000)
    assert 1_000_000 <= sum(map(len, reading.cached_files.values())) <= 2_100_000
    assert "/19" in reading.cached_files


def test_what_is_read_later_is_hidden_and_what_is_gone_is_not() -> None:
    assert _said() == {f"bad {SECRET} here"}
    reading.cache_file("/a", f'token = "{SECRET}"'.encode())
    assert _said() == {f"bad {MASK} here"}
    reading.cache_environment(1, {"TOKEN": "another8value"})
    assert foreign_words.mask_program_text(f"{SECRET} another8value") == f"{MASK} {MASK}"
    reading.cache_file("/a", b'token = "other8"')
    assert _said() == {f"bad {SECRET} here"}


def test_no_text_is_read_again_for_each_line_of_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    whole = DocumentMasker.content

    def noted(hiding: DocumentMasker, content: bytes) -> bytes:
        read.append(content)
        return whole(hiding, content)

    monkeypatch.setattr(DocumentMasker, "content", noted)
    reading.cache_file("/a", b"a = 1")
    for _ in range(5):
        _said()
    reading.cache_file("/b", b"b = 1")
    _said()
    assert read == [b"a = 1", b"b = 1"]


def test_hidden_values_are_found_in_linear_time() -> None:
    def seconds(values: int) -> float:
        hiding = DocumentMasker()
        for number in range(values):
            hiding.hidden(f"abcd{number:06}")
        text = " ".join(f"abcd{number:06}" for number in range(values))
        begun = time.thread_time()
        assert hiding.known(text) == " ".join([MASK] * values)
        return time.thread_time() - begun

    assert min(seconds(8_000) for _ in range(3)) <= 8 * max(seconds(2_000), 0.001)


@pytest.mark.parametrize(
    "text, shown",
    [
        ("abcdefgh", MASK),
        ("xabcdefx", f"x{MASK}x"),
        ("abcdefghijk", MASK),
        ("ab abcd", f"ab {MASK}"),
        ("abcdabcd", f"{MASK}{MASK}"),
    ],
)
def test_values_that_overlap_are_hidden_as_one(text: str, shown: str) -> None:
    hiding = DocumentMasker()
    for value in ("abcd", "abcdef", "cdefgh", "efghijk"):
        hiding.hidden(value)
    assert hiding.words(text) == shown
