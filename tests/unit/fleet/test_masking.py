"""What a capture secrecy, and what stands for it: stand-ins and digests that nobody makes without the key."""

from __future__ import annotations

import hashlib
import json

import pytest

from toolkit_installer.fleet.archive import ProgramRun
from toolkit_installer.fleet.masking import AnswerMasker, KeyedMasker
from toolkit_installer.fleet.values import CapturedAnswer, CapturedError
from toolkit_installer.node.queries import Secrecy

KEY = b"k" * 32
DAEMON = b'{"log-opts": {"splunk-token": "hunter22", "other": "hunter22"}, "mtu": 1500, "default-runtime": "runc"}'
PLACE = "/etc/docker/daemon.json"
LINE = f"/\x1f{PLACE}"
REGULAR = 0o100600


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def mask_with(
    secrecy: Secrecy, answer: CapturedAnswer, *others: CapturedAnswer, line: str = LINE, run: ProgramRun | None = None
) -> CapturedAnswer:
    """Return an answer of a capture that has others, contents of the same file, as well."""
    masking = AnswerMasker(KeyedMasker(KEY), "/")
    for each in (answer, *others):
        masking.collect(secrecy if each is answer else Secrecy.TEXT, line if each is answer else LINE, each, None)
    masking.settle()
    return masking.mask(secrecy, line, answer, run)


def test_equal_values_have_equal_stand_ins_and_another_key_makes_others() -> None:
    found = json.loads(KeyedMasker(KEY).texts.content(DAEMON))
    assert found["log-opts"]["splunk-token"] == found["log-opts"]["other"] != "hunter22"
    assert found["default-runtime"] == "runc"
    assert KeyedMasker(b"l" * 32).texts.content(DAEMON) != KeyedMasker(KEY).texts.content(DAEMON)
    assert KeyedMasker(b"l" * 32).key_name != KeyedMasker(KEY).key_name


def test_no_digest_and_no_size_of_a_hidden_content_is_captured() -> None:
    found = {"path": PLACE, "content": DAEMON, "identity": {"device": 1, "inode": 2, "size": len(DAEMON)}}
    masking = AnswerMasker(KeyedMasker(KEY), "/")
    digest = CapturedAnswer({"path": "/x", "content": json.dumps({"files": [{"written": [sha256(DAEMON)]}]}).encode()})
    receipt = CapturedAnswer(digest.value | {"path": "/usr/local/nvidia/.toolkit-installer/receipt.json"})
    status = CapturedAnswer([REGULAR, 1, 2, 1, 0, 0, len(DAEMON), 0, 1, 2, 3])
    kept = f"/\x1f/usr/local/nvidia/.toolkit-installer/originals/{sha256(DAEMON)}"
    lines = {LINE: CapturedAnswer(found), f"{LINE}.receipt": receipt}
    for line, answer in lines.items():
        masking.collect(Secrecy.TEXT, line, answer, None)
    masking.settle()
    made = [masking.mask(Secrecy.TEXT, line, answer, None) for line, answer in lines.items()]
    made.append(masking.mask(Secrecy.NONE, LINE, status, None))
    whole = repr([*made, masking.mask_line(kept), masking.digests])
    assert sha256(DAEMON) not in whole
    assert str(len(DAEMON)) not in whole
    # what a receipt says of the content is still told by the content
    assert masking.digests[sha256(made[0].value["content"])] in made[1].value["content"].decode()


def test_a_receipt_loses_what_it_tore_from_files() -> None:
    keys = [
        {"path": ["log-opts", "splunk-token"], "ours": "a", "prior": 'value = "s3cret"'},
        {"path": ["runtimes", "nvidia"], "ours": '{"value": {"path": "/bin/n", "args": ["s3cret"]}}', "prior": None},
    ]
    hidden = KeyedMasker(KEY).mask_receipt(json.dumps({"keys": keys}).encode()).decode()
    assert "s3cret" not in hidden
    assert "/bin/n" in hidden


def test_a_receipt_that_is_nested_deeply_is_captured_all_the_same() -> None:
    for depth in range(500, 1010, 10):  # some of these can be read and not written
        assert KeyedMasker(KEY).mask_receipt(b'{"x": ' * depth + b"1" + b"}" * depth)


def test_what_a_program_quotes_of_a_file_is_hidden() -> None:
    run = ProgramRun("/", ("/usr/bin/dockerd", "--validate"), ())
    answer = CapturedAnswer({"status": 1, "output": b"", "errors": "invalid option hunter22 (from file)"})
    content = CapturedAnswer({"path": PLACE, "content": DAEMON})
    masking = AnswerMasker(KeyedMasker(KEY), "/")
    masking.collect(Secrecy.TEXT, LINE, content, None)
    masking.collect(Secrecy.TEXT, "asked", answer, run)
    masking.settle()
    said = masking.mask(Secrecy.TEXT, "asked", answer, run).value["errors"]
    assert "hunter22" not in said
    assert said.startswith("invalid option hidden!")


def test_an_error_that_quotes_a_file_says_no_secret() -> None:
    failure = CapturedAnswer(
        failure=CapturedError("ConfigurationError", "cannot read 'hunter22'", PLACE, 3, "remove 'hunter22'")
    )
    made = mask_with(Secrecy.TEXT, failure, CapturedAnswer({"path": PLACE, "content": DAEMON}))
    assert made.failure is not None
    assert "hunter22" not in made.failure.reason
    assert made.failure.hint is not None
    assert "hunter22" not in made.failure.hint
    assert (made.failure.path, made.failure.line) == (PLACE, 3)


@pytest.mark.parametrize("root", ["/", "/host", "/proc/7/root"])
def test_a_file_of_the_node_is_hidden_through_whatever_root_it_is_seen(root: str) -> None:
    line = f"{root}\x1f{PLACE}"
    found = {"path": PLACE, "content": DAEMON, "identity": {"device": 1, "inode": 2, "size": len(DAEMON)}}
    made = mask_with(Secrecy.TEXT, CapturedAnswer(found), line=line).value
    assert b"hunter22" not in made["content"]
    assert made["identity"]["size"] < len(DAEMON)
    assert (
        mask_with(Secrecy.NONE, CapturedAnswer([REGULAR, 1, 2, 1, 0, 0, len(DAEMON), 0, 1, 2, 3]), line=line).value[6]
        == 1
    )


def test_the_payload_is_public() -> None:
    content = CapturedAnswer(b'swarm-resource = "X" # as it is shipped')
    assert mask_with(Secrecy.PUBLIC, content, line="/payload\x1f/etc/config.toml\x1f-1") == content


def test_of_a_content_that_is_no_text_nothing_is_shown() -> None:
    assert b"hunter22" not in KeyedMasker(KEY).texts.content(b"\0hunter22")
    zone = b"TZif2\0\0\0UTC0"
    assert KeyedMasker(KEY).texts.content(zone) == zone


def test_secrets_that_are_kept_are_kept() -> None:
    masking = AnswerMasker(None, "/")
    answer = CapturedAnswer({"path": PLACE, "content": DAEMON})
    masking.collect(Secrecy.TEXT, LINE, answer, None)
    masking.settle()
    assert masking.mask(Secrecy.TEXT, LINE, answer, None) == answer
    assert masking.digests == {}
