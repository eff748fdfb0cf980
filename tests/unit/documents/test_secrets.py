"""Secrets in configuration text are masked, whatever shape it has, and nothing moves to another line."""

from __future__ import annotations

import json
import time
import tomllib
from typing import Any

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit_installer.documents.secrets import MASK, is_secret_name, mask


@pytest.mark.parametrize(
    "text",
    [
        'password = "hunter2"',
        "password = 'hunter2'",
        'password = "hunter2',
        "password = hunter2",
        "password = a,hunter2",
        "password = a hunter2 # hunter2",
        "password = 07:hunter2",
        'password="a\\"hunter2"',
        'password = """hunter2"""',
        'password = """\nhunter2\n  hunter2"""',
        'password = """a \\""" hunter2\nhunter2"""',
        "password = '''\n'hunter2'\n'''",
        'password = "a\nhunter2',
        '"password" "hunter2"',
        '"registry"."pass\\u0077ord" = "hunter2"',
        'registry.configs."r:5000".auth.identitytoken = "hunter2"',
        'registry . auth . x = "hunter2"',
        'auth = { username = "hunter2", n = ["hunter2", {a = "hunter2"}] }',
        'auth = ["a",\n  # hunter2\n "hunter2",\n]',
        '[plugins."io.containerd.grpc.v1.cri".registry.configs."r:5000".auth]\n  username = "hunter2"',
        "[plugins.cri.registry.headers]\n  X-Meta = ['hunter2',\n 'hunter2']\n  Y = \"hunter2\"",
        '[[ x."headers" ]] # why\n  X = "hunter2"',
        'broken = [\n[x.headers]\nX = "hunter2"',
        '# password = "hunter2"',
        '# don\'t: password = "hunter2"',
        '# [x.headers]\n#   X = "hunter2"\n\n#  Y = "hunter2"',
        '[x.headers]\n# X = "hunter2"',
        '{"password": "hunter2"}',
        '{"password"\n:\n"hunter2"}',
        '{"auths": {"https://r/v1": {"email": "hunter2", "x": [["hunter2"], 1]}}}',
        '{"log-opts": {"splunk-token": "hunter2"}}',
        '{"api_key": "hunter2"}',
        '{"apiKey": "hunter2"}',
        '{"X-Api-Key": "hunter2"}',
        '{"AWS_SECRET_ACCESS_KEY": "hunter2"}',
        '{"aws-access-key": "hunter2"}',
        '{"client-private-key": "hunter2"}',
        '{"Authorization": "hunter2"}',
        '{"HttpHeaders": {"X-Meta": "hunter2"}}',
        '{"proxies": {"http-proxy": "http://user:hunter2@proxy:3128"}}',
        '{"http-proxy": "http://hunter2@proxy:3128"}',
        '{"http-proxy": "http://user:a/hunter2@proxy"}',
        '{"http-proxy": "http://user:a@hunter2@proxy"}',
        '{"http-proxy": "http://user:a\'hunter2@proxy"}',
        '{"http-proxy": "http:\\/\\/user:hunter2@proxy"}',
        '{"http-proxy": "http:\\u002f\\u002fuser:hunter2\\u0040proxy"}',
        '{"http://user:hunter2@proxy": 1}',
        "see http://user:hunter2@proxy and http://a/b,http://user:hunter2@proxy",
        '[x."http://user:hunter2@proxy"]',
        'a = "Bearer hunter2"',
        'a = "basic Hunter2hunter2="',
        "curl -H 'X-Auth: Digest hunter2 hunter2'",
        'env = ["API_TOKEN=hunter2", "A=b", "DB_PASSWORD=\'a hunter2\'", "X_TOKEN = hunter2"]',
        'env = "DB_PASSWORD=\\"a hunter2\\""',
        'args = ["--password", "hunter2"]',
        'cmd = "tool --token hunter2 --auth=hunter2"',
        "cmd = \"tool --password 'a hunter2'\"",
        "ran: tool --password hunter2",
        'key = """-----BEGIN RSA PRIVATE KEY-----\nhunter2\nhunter2\n-----END RSA PRIVATE KEY-----"""',
        '{"key": "-----BEGIN PRIVATE KEY-----\\nhunter2\\n-----END PRIVATE KEY-----\\n"}',
        "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n",
        '{{ with .Auth }}\n  password = "{{ hunter2 }}"\n  auth = {{ printf "hunter2" }}\n{{ end }}',
    ],
)
def test_a_secret_is_not_shown(text: str) -> None:
    masked = mask(text)
    assert "hunter2" not in masked.lower()
    assert MASK in masked
    assert masked.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"authorization-plugins": ["img-authz", "other"]}',
        'global_auth_file = "/var/lib/kubelet/config.json"',
        'sandbox_image = "registry.k8s.io/pause:3.9@sha256:abc"',
        '{"registry-mirrors": ["http://mirror:5000", "https://m/a@b"], "dns": ["10.0.0.1"]}',
        '[plugins."auth.example.com".tls]\n  ca_file = "/etc/ca.pem"',
        'address = "unix:///run/x.sock" # don\'t touch',
        '{"runtimes": {"nvidia": {"path": "/usr/bin/x", "args": ["--debug", "on"]}}, "default-runtime": "nvidia"}',
        "unauthorized: access denied",
        "# basic configuration",
        '{{ range $k, $v := .X }}\n[a."b"]\n  x = "{{ $v }}"\n{{ end }}',
        'x = """\nplain\n"""',
        "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----",
    ],
)
def test_what_is_no_secret_stays_readable(text: str) -> None:
    assert mask(text) == text


def test_masking_ends_with_the_entry_the_array_and_the_table() -> None:
    text = (
        'password = "x"\na = 1\nauth = [\n "x",\n]\nb = "y"\n[x.headers]\nh = "x"\n[z]\nc = {token = "x", d = "y"}\n'
        'e = "y" # token: x\nf = "y"\ng = ["--token", "x", "y"]\nh = \'\'\'y\'\'\'\n'
    )
    assert mask(text) == (
        'password = "****"\na = 1\nauth = [\n "****",\n]\nb = "y"\n[x.headers]\nh = "****"\n[z]\n'
        'c = {token = "****", d = "y"}\ne = "y" # token: ****\nf = "y"\n'
        "g = [\"--token\", \"****\", \"y\"]\nh = '''y'''\n"
    )


def test_the_line_ends_within_a_secret_stay() -> None:
    assert mask('token = """\r\na\r\n\r\nb"""\r\n') == 'token = """\r\n****\r\n\r\n****"""\r\n'


@pytest.mark.parametrize(
    "name, expected",
    [("X-Auth", True), ('"pass\\x77ord"', True), ("password\\", True), ("\\U99999999token", True), ("path", False)],
)
def test_a_name_is_read_as_its_parser_would(name: str, expected: bool) -> None:  # noqa: FBT001 - a parameter of a test
    assert is_secret_name(name) is expected


PIECES = st.sampled_from(["--token", "password", "://", *"\"'#\n[]{}=:,\\@a ", '""' + '"', "''" + "'"])


@settings(deadline=None)
@given(st.lists(PIECES | st.text(max_size=4), max_size=40).map("".join))
def test_any_text_is_masked_line_for_line(text: str) -> None:
    assert mask(text).count("\n") == text.count("\n")


@settings(deadline=None)
@given(st.lists(PIECES.filter(lambda piece: piece not in {"#", "\n"}), max_size=8).map("".join))
def test_no_line_before_it_makes_a_secret_visible(before: str) -> None:
    assert "hunter2" not in mask(f'{before}\npassword = "hunter2"\n')


NAMES = st.sampled_from(["a", "b c", "é", "path", "x.y", "auth", "HTTP headers", "token", "X-Api-Key", "password"])
LEAVES = st.sampled_from(["plain", "it's", 'q"uote', "# no comment", "{[,=:", "two\nlines", "", "trailing\\"])
TABLES = st.recursive(
    st.dictionaries(NAMES, LEAVES, max_size=3),
    lambda inner: st.dictionaries(NAMES, LEAVES | inner | st.lists(LEAVES | inner, max_size=3), max_size=4),
    max_leaves=6,
)


def expected(value: Any, *, secret: bool = False) -> Any:
    if isinstance(value, dict):
        return {key: expected(item, secret=secret or is_secret_name(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [expected(item, secret=secret) for item in value]
    return MASK if secret else value


@settings(deadline=None)
@given(table=TABLES, indent=st.sampled_from([None, 0, 2, "\t"]), ascii_only=st.booleans())
def test_masked_json_is_json_that_differs_in_secrets_only(
    table: dict[str, Any], indent: Any, *, ascii_only: bool
) -> None:
    masked = mask(json.dumps(table, indent=indent, ensure_ascii=ascii_only))
    assert json.loads(masked) == expected(table)


@settings(deadline=None)
@given(TABLES)
def test_masked_toml_is_toml_that_differs_in_secrets_only(table: dict[str, Any]) -> None:
    text = tomlkit.dumps(table)
    masked = mask(text)
    assert tomllib.loads(masked) == expected(tomllib.loads(text))


@pytest.mark.parametrize(
    "piece",
    [
        '"',
        '"""a',
        "://",
        "a",
        "a.",
        "[",
        "[a.",
        "# ",
        "-----BEGIN PRIVATE KEY-----",
        "bearer ",
        "\\",
        "@:",
        '"a= "',
        '{"a":',
        " ",
    ],
)
def test_the_time_grows_with_the_text_and_not_faster(piece: str) -> None:
    def seconds(size: int) -> float:
        text = piece * (size // len(piece))
        start = time.process_time()
        mask(text)
        return time.process_time() - start

    assert seconds(400_000) < 20 * max(seconds(40_000), 0.02)
    quoted = f'"{piece * 20_000}"'
    start = time.process_time()
    mask(quoted)
    assert time.process_time() - start < 2
