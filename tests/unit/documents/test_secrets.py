"""Secrets in configuration text are masked, whatever shape it has, and nothing moves to another line."""

from __future__ import annotations

import json
import pathlib
import random
import string
import time
import tomllib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.quick import Few
from toolkit_installer.documents.secrets import MASK, is_secret_name, mask

CORPUS = pathlib.Path(__file__).parents[2] / "data/corpus"
DIGEST = "7031c1b283388d2c2e09b57badb803c05ebed362dc88d84b480cc47f72a21097"


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
        *(
            f'{{"{name}": "hunter2"}}'
            for name in (
                *(
                    "license_key",
                    "encryption-key",
                    "clientKey",
                    "key",
                    "KEY",
                    "keys",
                    "sas",
                    "aws_sig",
                    "psk",
                    "wifiPSK",
                ),
                *(
                    "LICENSEKEY",
                    "registry.key",
                    "SASToken",
                    "x-Pass",
                    "key1",
                    "lIcEnSe_kEy",
                    "jwt",
                    "db_creds",
                    "k\\u0065y",
                ),
            )
        ),
        "key = hunter2",
        "a.license_key = 'hunter2'",
        'a.key.b = "hunter2"',
        '"license" . "key" = "hunter2"',
        '[a.keys]\nb = "hunter2"',
        'a = { "key" = "hunter2", b = 1 }',
        "# license key: hunter2",
        '#encryption_key="hunter2"',
        'key = """\nhunter2\n"""',
        'key "hunter2"',
        'key = ["hunter2", ["hunter2"]]',
        '{"log-opts": {"x-sig": "hunter2"}, "key": {"a": "hunter2"}}',
        'env = ["LICENSE_KEY=hunter2"]',
        'env = ["LICENSE_KEY=two hunter2 words"]',
        'args = ["-e", "LICENSE_KEY=hunter2", "--psk", "hunter2"]',
        "cmd = \"docker run -e LICENSE_KEY=hunter2 -e PSK='a hunter2' image\"",
        "cmd: docker run -e LICENSE_KEY=hunter2 image",
        '{"url": "https://a.blob/c?sv=2024&sig=hunter2"}',
        '{"url": "https://a.blob/c?sig=hunter2&sv=2024"}',
        '{"url": "https://a.blob/c?sv=2024\\u0026sig=hunter2"}',
        '{"url": "https://a.blob/c%3Fsig%3Dhunter2"}',
        'url = "https://s3/b?X-Amz-Algorithm=a&X-Amz-Signature=hunter2"',
        "# https://s3/b?X-Amz-Signature=hunter2",
        "GET https://s3/b?sv=1&sig=hunter2: 403",
        *(
            f"{before}{name}{mark}{quote}alice:hunter2@proxy:3128{quote}{after}"
            for name in ("http-proxy", "httpsProxy", "HTTP_PROXY", "all_proxy", "mirror", "a.proxy")
            for before, mark, quote, after in (
                ("", " = ", '"', ""),
                ("# ", ": ", "", ""),
                ("# ", " = ", "'", ""),
                ("", "=", "", ""),
                ("env = ['", "=", "", "']"),
            )
        ),
        '{"proxies": {"http-proxy": "alice:hunter2@proxy:3128"}}',
        '{"proxies": {"http-proxy": "hunter2@proxy:3128"}}',
        '{"proxies": {"http-proxy": "alice:p/hunter2@proxy:3128"}}',
        '{"proxies": {"http-proxy": "alice:p hunter2@proxy:3128"}}',
        '{"proxies": {"http-proxy": "alice:p@hunter2@proxy:3128"}}',
        '{"proxies": {"http-proxy": "alice:p\\"hunter2@proxy:3128"}}',
        '{"proxies": {"http-proxy": "alice:hunter2\\u0040proxy:3128"}}',
        '{"proxies": {"http-proxy": "alice\\u003ahunter2@proxy:3128"}}',
        '{"proxies": {"http-proxy": "DOMAIN\\\\alice:hunter2@proxy:3128"}}',
        '{"mirror": "alice:hunter2\\u0040proxy:3128"}',
        '{"mirror": "alice\\u003ahunter2@proxy:3128"}',
        '{"mirror": "alice:a@hunter2\\u0040proxy:3128"}',
        '{"env": ["HTTP_PROXY=alice:p hunter2@proxy:3128"]}',
        "# http-proxy: alice:p=hunter2@proxy",
        'mirrors = ["https://m/x,alice:hunter2@m"]',
        'image = "alice:hunter2@registry:5000/img@sha256:0123456789abcdef"',
        '{"tlskey": "hunter2"}',
        '{"github_pat": "hunter2", "db-dsn": "hunter2", "PIN": "hunter2"}',
        'fernet = "hunter2"',
        'shared-access-policy = "hunter2"',
        'x = "https://hooks.slack.com/services/T00/B00/hunter2"',
        'x = "https://discord.com/api/webhooks/1/hunter2"',
        'sessionid = "hunter2"',
        'slack_webhook = "https://hooks/hunter2"',
        '{"a": {"key_file": "hunter2", "key": "hunter2"}}',
        'decryption_keys_path = "hunter2"',
        '{"auth.tlskey": "/etc/hunter2"}',
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
        'key_model = "node"',
        '{"credsStore": "desktop", "credHelpers": {"gcr.io": "gcloud"}}',
        '{"tlskey": "/etc/docker/key.pem", "tlscert": "/etc/docker/cert.pem", "deprecated-key-path": ""}',
        '{"default-cgroupns-mode": "private", "no-new-privileges": true, "cgroup-parent": "/kubepods.slice/a-b.slice"}',
        '{"bip": "172.26.0.1/16", "fixed-cidr-v6": "fd00:1234:5678:9abc:def0::/80", "mtu": 1450, "icc": false}',
        '{"node-generic-resources": ["NVIDIA-GPU=GPU-45cbf7b3-f919-7228-7a26-b06628ebefa1"]}',
        '{"data-root": "/mnt/nvme0n1p1/docker", "exec-opts": ["native.cgroupdriver=systemd"], "live-restore": true}',
        '{"storage-opts": ["dm.thinpooldev=/dev/mapper/vg0-thin2pool", "overlay2.override_kernel_check=true"]}',
        '{"log-opts": {"max-size": "100m", "syslog-tls-key": "/etc/ca/key.pem", "env": "os,customer"}}',
        '{"proxies": {"http-proxy": "http://proxy:3128", "https-proxy": "proxy:3128", "no-proxy": "10.0.0.0/8,.a"}}',
        '{"features": {"containerd-snapshotter": true}, "default-gateway": "10.20.1.1", "keyring": "session"}',
        f'sandbox_image = "registry.k8s.io/pause:3.9@sha256:{DIGEST}"',
        f'x = "sha256:{DIGEST}"',
        f'x = "busybox:1.36@sha256:{DIGEST}"',
        'x = "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/pause:3.5"',
        f'pause_image = "registry/pause:{DIGEST[:40]}"',
        'signature_policy = "/etc/crio/policy.json"\ndecryption_keys_path = "/etc/crio/keys/"',
        'stream_tls_key = ""\nmetrics_key = "/etc/crio/metrics.key"\nnamespaced_auth_dir = "/etc/crio/auth"',
        'args = ["--decryption-keys-path", "/etc/containerd/ocicrypt/keys"]',
        'env = ["OCICRYPT_KEYPROVIDER_CONFIG=/etc/containerd/ocicrypt/ocicrypt_keyprovider.conf"]',
        '[a.registry.configs."r:5000".tls]\nca_file = "/a/ca.pem"\ncert_file = "/a/c.pem"\nkey_file = "/a/key.pem"',
        '[plugins.x.x509_key_pair_streaming]\ntls_cert_file = ""\ntls_key_file = "/a/b"',
        'runtime_type = "io.containerd.runc.v2"\nstream_idle_timeout = "4h0m0s"\nversion = 3',
        'BinaryName = "/nix/store/0q1w5j8l2m4n6b7v9c3x1z5a7s9d2f4g-runc-1.2.6/bin/runc"',
        f'root = "/var/lib/docker/overlay2/{DIGEST}/merged"',
        f'address = "unix:///run/{DIGEST}/x.sock"',
        f"# https://github.com/containerd/containerd/blob/{DIGEST[:40]}/config.toml",
        f'msg="started" version=v1.7.24-0-g{DIGEST[:40]} revision={DIGEST[:40]}',
        "module v0.0.0-20221116044647-bc3834ca7abd",
        f'msg="pod" id={DIGEST}',
        '{"name": "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c", "x": "MIG-GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c/1/0"}',
        '{"hostPath": "/lib/firmware/nvidia/580.65.06/gsp_ga10x.bin", "args": ["cdi-hook", "--link", "a.so.1::/b"]}',
        "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb Tesla-V100-SXM2-32GB Intel-Xeon-E5-2680v4 5.15.0-1053-aws",
        "accept-nvidia-visible-devices-envvar-when-unprivileged = true",
        'ldconfig = "@/sbin/ldconfig.real"',
        "user@1000.service: Main process exited, code=exited, status=1/FAILURE",
        "mail: root@example.com, git@github.com:a/b.git",
        'toml: no such key "plugins"',
        "x = 2024-05-27T07:32:00Z # 18446744073709551615 xxxxxxxxxxxxxxxxxxxxxxxx",
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


def test_masking_ends_with_the_array_that_a_comment_began_and_with_the_comment() -> None:
    text = '# auth = [\n#  "x",\n# ]\n# a = "y"\n# auth = [\nb = "y"\n# "y"\n'
    assert mask(text) == text.replace('"x"', '"****"')


def test_the_line_ends_within_a_secret_stay() -> None:
    assert mask('token = """\r\na\r\n\r\nb"""\r\n') == 'token = """\r\n****\r\n\r\n****"""\r\n'


@pytest.mark.parametrize(
    "name, expected",
    [("X-Auth", True), ('"pass\\x77ord"', True), ("password\\", True), ("\\U99999999token", True), ("path", False)],
)
def test_a_name_is_read_as_its_parser_would(name: str, expected: bool) -> None:  # noqa: FBT001 - a parameter of a test
    assert is_secret_name(name) is expected


PUBLIC = "-----BEGIN CERTIFICATE-----\nMIIBojANBgkqhkiG9w0BAQEFAAOC8xDDWvGOB\n-----END CERTIFICATE-----\n"


def test_a_certificate_is_no_secret_and_what_stands_beside_it_is() -> None:
    secret = token(LETTERS, (20,), 1)
    text = json.dumps({"a": PUBLIC, "b": f"{secret} {PUBLIC} {secret}"})
    assert mask(text) == text.replace(secret, MASK)
    assert mask(f'a = """\n{PUBLIC}"""\n') == f'a = """\n{PUBLIC}"""\n'


# --- what a secret is called, and where it stands ---

SECRET_NAMES = (
    *("password", "registry-token", "license_key", "encryption_key", "client_key", "key", "sas", "aws_sig", "psk"),
    *("Sig", "X-Amz-Signature", "LICENSE_KEY", "clientKey", "db.pass", "APIKEY", "auth"),
)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ONE_LINE = ANY_TEXT.filter(lambda text: len(f"{text}.".splitlines()) < 2)
IN_A_WORD = st.text("aZ0-_.~%+!$*():/?\\", max_size=6)


def in_toml(name: str, secret: str) -> str:
    return tomlkit.dumps({"first": 1, name: secret, "last": {"a": 1, name: [secret, {"x": secret}]}})


def in_an_inline_table(name: str, secret: str) -> str:
    return f"a = {{b = 1, {json.dumps(name)} = {json.dumps(secret)}, c = 2}} # d\n"


def in_several_lines(name: str, secret: str) -> str:
    return f"{json.dumps(name)} = '''\n{secret.replace(chr(39), '')}\n'''\na = 1\n"


def in_json(name: str, secret: str) -> str:
    return json.dumps({"a": {name: secret}, "b": [{name: [secret, {"c": secret}]}]}, indent=1)


def in_json_of_all_letters(name: str, secret: str) -> str:
    return json.dumps({"a": {name: secret}}, ensure_ascii=False)


def in_a_comment(name: str, secret: str) -> str:
    return "".join(f"# {line}\n" for line in in_json(name, secret).split("\n"))


@pytest.mark.parametrize(
    "place", [in_toml, in_an_inline_table, in_several_lines, in_json, in_json_of_all_letters, in_a_comment]
)
@settings(deadline=None)
@given(name=st.sampled_from(SECRET_NAMES), before=ANY_TEXT, after=ANY_TEXT)
def test_whatever_a_secret_consists_of_its_name_masks_it(
    place: Callable[[str, str], str], name: str, before: str, after: str
) -> None:
    assert "hunter2" not in mask(place(name, f"{before}hunter2{after}"))


@settings(deadline=None)
@given(name=st.sampled_from(SECRET_NAMES), before=ONE_LINE, after=ONE_LINE)
def test_whatever_a_variable_consists_of_its_name_masks_it(name: str, before: str, after: str) -> None:
    variable = f"{name}={before}hunter2{after}"
    assert "hunter2" not in mask(json.dumps({"env": ["A=b", variable], "args": ["-e", variable, "x"]}))
    assert "hunter2" not in mask(tomlkit.dumps({"env": ["A=b", variable], "args": ["-e", variable, "x"]}))


@pytest.mark.parametrize(
    "template",
    [
        "https://host/path?a=b&{}&c=d",
        'x = "https://host/path?{}&c=d" # y',
        '{{"x": ["https://host/path?a=b&{}"]}}',
        "# {}",
        'cmd = "tool --x {} y"',
        "run -e {} image",
    ],
)
@settings(deadline=None)
@given(name=st.sampled_from(SECRET_NAMES), before=IN_A_WORD, after=IN_A_WORD)
def test_a_secret_within_a_text_is_masked_for_its_name(template: str, name: str, before: str, after: str) -> None:
    assert "hunter2" not in mask(template.format(f"{name}={before}hunter2{after}"))


@pytest.mark.parametrize(
    "template",
    [
        '{name} = "{login}@proxy:3128"',
        '{{"{name}": "{login}@proxy:3128", "a": 1}}',
        '{{"{name}": "http://{login}@proxy:3128"}}',
        '{{"env": ["{name}={login}@proxy:3128"]}}',
        "# {name}: {login}@proxy:3128",
        "run -e {name}={login}@proxy:3128 image",
        "failed to reach {login}@proxy:3128",
    ],
)
@settings(deadline=None)
@given(
    name=st.sampled_from(["http-proxy", "HTTPS_PROXY", "allProxy", "mirror", "server"]),
    user=st.text("aZ0._-", min_size=1, max_size=4),
    before=st.text("aZ0-_.~%+!$*():;&", max_size=6),
    after=st.text("aZ0-_.~%+!$*():;&@", max_size=6),
)
def test_a_password_before_a_host_is_masked_without_a_scheme_too(
    template: str, name: str, user: str, before: str, after: str
) -> None:
    assert "hunter2" not in mask(template.format(name=name, login=f"{user}:{before}hunter2{after}"))


# --- what a secret looks like ---

HEX, LETTERS = string.hexdigits[:16], string.ascii_letters + string.digits
TOKENS = (
    *((HEX, (32,)), (HEX, (40,)), (HEX, (8, 4, 4, 4, 12)), (LETTERS, (24,)), (LETTERS, (36, 120, 43))),
    *(
        (LETTERS + "+/", (44,)),
        (string.ascii_lowercase + string.digits, (40,)),
        (string.ascii_uppercase + "234567", (52,)),
    ),
)


def token(alphabet: str, lengths: Sequence[int], seed: int) -> str:
    chance = random.Random(f"{alphabet}{seed}")  # noqa: S311  # the same ones each time
    separator = "-" if alphabet == HEX else "."
    return separator.join("".join(chance.choices(alphabet, k=length)) for length in lengths)


@pytest.mark.parametrize("alphabet, lengths", TOKENS)
@pytest.mark.parametrize(
    "template",
    [
        'unknown = "{}"',
        "unknown = '{}'",
        '{{"unknown": "{}"}}',
        '{{"labels": ["a=b", "unknown={}"]}}',
        "# it was {} once",
        "a = [\n  '{}', # {}\n]",
        'a = """\nb\n{}\n"""',
        "https://hooks.example.com/services/{}",
        "tool failed: {} was refused",
        'x = "prefix_{}"',
    ],
)
def test_what_looks_like_a_key_is_masked_under_any_name(alphabet: str, lengths: Sequence[int], template: str) -> None:
    for seed in range(20):
        secret = token(alphabet, lengths, seed)
        masked = mask(template.format(secret, secret))
        assert secret not in masked
        assert MASK in masked


def test_a_key_that_is_written_so_as_not_to_be_read_is_masked() -> None:
    secret = token(LETTERS, (32,), 1)
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in secret)
    assert json.loads(mask(f'{{"a": "{escaped}", "b": "x {escaped[:96]}{secret[16:]}"}}')) == {"a": MASK, "b": MASK}


# --- the files that nodes have ---


def test_of_the_files_of_the_corpus_only_these_lines_change() -> None:
    """Each is a secret, or stands among secrets."""
    changed = []
    for path in sorted(CORPUS.rglob("*")):
        if path.is_file():
            text = path.read_bytes().decode(errors="backslashreplace")
            lines = zip(text.split("\n"), mask(text).split("\n"), strict=True)
            changed += [f"{path.name}: {after.strip()}" for before, after in lines if before != after]
    assert changed == [
        'aks.toml: X-Meta-Source-Client = ["****"]',
        'copied-from-k3s.toml: username = "****"',
        'copied-from-k3s.toml: password = "****"',
        'registry-auth.toml: username = "****"',
        'registry-auth.toml: password = "****" # ****',
        "registry-auth.toml: identitytoken = '''****'''",
        'registry-auth.toml: Authorization = ["****"]',
        'unicode.toml: "X-Städte" = ["****", "****"]',
    ]


@pytest.mark.parametrize("folder", ["containerd", "crio", "k0s", "k3s", "rke2", "microk8s", "leftovers", "toolkit"])
def test_the_files_of_distributions_and_of_the_toolkit_are_shown_as_they_are(folder: str) -> None:
    for path in sorted((CORPUS.parent / folder).rglob("*")):
        if path.is_file() and not path.is_symlink():
            text = path.read_bytes().decode(errors="backslashreplace")
            assert mask(text) == text, path


PIECES = st.sampled_from(
    [
        "--token",
        "password",
        "key",
        "proxy",
        "://",
        "x:y@z",
        "\\u0040",
        "//",
        *"\"'#\n[]{}=:,\\@a ",
        '""' + '"',
        "''" + "'",
    ]
)


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


@pytest.mark.parametrize("said", ['a"b', "a\\", "a/b\\", '"', "a\nb", "a"])
def test_a_masked_address_of_a_webhook_leaves_the_document_what_it_was(said: str) -> None:
    document = {"x": f"https://hooks.example/services/{said}", "y": f"https://d.example/api/webhooks/{said}", "z": "z"}
    for text in (json.dumps(document), json.dumps(document).replace("/", "\\/")):
        masked = json.loads(mask(text))
        assert masked.keys() == document.keys()
        assert masked["z"] == "z"
        assert MASK in masked["x"]
        assert MASK in masked["y"]


@settings(deadline=None)
@given(TABLES)
def test_masked_toml_is_toml_that_differs_in_secrets_only(table: dict[str, Any]) -> None:
    text = tomlkit.dumps(table)
    masked = mask(text)
    assert tomllib.loads(masked) == expected(tomllib.loads(text))


REPEATED = [
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
    "aB3/",
    "a:b@c ",
    "a=b@c,",
    "\\u0040",
    "proxy: ",
    'key "x" ',
    "GPU-",
    "/",
]


def test_the_time_grows_with_the_text_and_not_faster(few: Few) -> None:
    def seconds(text: str) -> float:
        start = time.process_time()
        mask(text)
        return time.process_time() - start

    for piece in few(REPEATED):
        short, long = (piece * (size // len(piece)) for size in (20_000, 200_000))
        # ten times the text: in time that grows with its square, a hundred times as long, however often it is tried;
        # what else the machine does makes it seem slower, and hardly each time
        assert any(seconds(long) < 30 * max(seconds(short), 0.01) for _ in range(8)), piece
        assert any(seconds(f'"{piece * 20_000}"') < 2 for _ in range(8)), piece
