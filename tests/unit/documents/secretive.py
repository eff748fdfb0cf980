"""Configurations with a secret in every position that is somebody's: made by rules, the same each time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

SECRETS = ("hunter2", "Tr0ub4dor", "correct-horse", "p@ss/w0rd!", "9f86d081884c7d65", "geheim", "лозинка", "471108")
"""Of all looks: words, what a machine made, marks, another language, digits."""

FORMS = {
    "docker-log-opts.json": """{"log-driver": "splunk", "log-opts": {"splunk-token": "@", "labels": "@"}}""",
    "docker-proxy.json": """{"proxies": {"http-proxy": "http://someone:@@proxy.example:3128"}, "debug": true}""",
    "docker-mirror.json": """{"registry-mirrors": ["https://m.example/?token=@"], "insecure-registries": ["@"]}""",
    "docker-named-value.json": """{"env": [{"name": "DB_PASSWORD", "value": "@"}, {"value": "@", "name": "X"}]}""",
    "docker-nested.json": """{"x": {"y": [["@"], {"z": {"w": "@"}}]},
 "runtimes": {"a": {"path": "/bin/a", "note": "@"}}}""",
    "docker-json-in-a-string.json": r"""{"opts": "{\"password\": \"@\"}"}""",
    "docker-compact.json": """{"a":"@","mtu":1500,"b":["@"]}""",
    "docker-broken.json": """{"runtimes": {"a": {"path": "/bin/a"} "token": "@", "x": ["@"
"y": "@\"""",
    "docker-open-list.json": """{"cdi-spec-dirs": ["/etc/cdi",
"password": "@"}""",
    "docker-arguments.json": """{"runtimes": {"a": {"path": "/bin/a", "runtimeArgs": ["--token=@", "--key", "@"]}}}""",
    "docker-escaped.json": r"""{"to\u006ben": "@", "labels": ["a=@"]}""",
    "containerd-auth.toml": """[plugins."io.containerd.grpc.v1.cri".registry.configs."r.example".auth]
password = "@"
auth = '@'
""",
    "containerd-header.toml": """[plugins."io.containerd.grpc.v1.cri".registry.headers]
X-Api-Key = ["@"]
""",
    "containerd-comment.toml": """version = 2 # the password is @
# curl -u someone:@ https://r.example
#token = '@'
""",
    "containerd-block.toml": """note = \"\"\"
first @
password: @
\"\"\"
other = '''@'''
""",
    "containerd-inline.toml": """x = { token = "@", list = ["@", { y = "@" }] }
version = 2
""",
    "containerd-bare.toml": """version = 2
pin = @
@
""",
    "containerd-unclosed.toml": """imports = [ "/etc/a.toml",
  password = "@"
  "@"
root = "/var/lib/containerd"
""",
    "containerd-unclosed-string.toml": """root = "/var/lib/containerd
password = "@
x = '@
""",
    "containerd-array-of-tables.toml": """[[site.pools]]
name = "@"
[[site.pools]]
"odd key" = "@"
""",
    "containerd-dotted.toml": """site."r.example:5000".auth.password = "@"
grpc.tcp_tls_key = "@"
""",
    "containerd-credential-in-a-key.toml": """["http://someone:@@r.example"]
x = 1
""",
    "crio.conf": """[crio.image]
global_auth_file = "/x"
registries = ["@"]
[crio.runtime]
default_env = ["TOKEN=@"]
""",
    "crio-environment.conf": """[crio.runtime.runtimes.a]
runtime_path = "/bin/a"
monitor_env = ["PATH=/bin", "KEY=@"]
""",
    "k3s.yaml": """token: @
server: https://s.example:6443
node-label:
  - db-password=@
  - x
""",
    "k3s-list.yaml": """kubelet-arg: ["node-labels=key=@", 'container-runtime-endpoint=/run/x.sock']
""",
    "kubelet.yaml": """kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/x.sock
x:
  y: >-
    @
    @
""",
    "kubelet-deep.yaml": """a:
  - name: DB_PASSWORD
    value: @
  - {name: x, value: '@'}
""",
    "unit.service": r"""[Service]
ExecStart=/usr/bin/dockerd -H fd:// --log-opt splunk-token=@ \
  --registry-mirror https://m/?token=@
""",
    "unit-environment.service": """[Service]
Environment="TOKEN=@" A=@
Environment=B=@
ExecStart=/usr/bin/k3s server --token @
""",
    "unit-quotes.service": """[Service]
ExecStart=/bin/sh -c 'sshpass -p @ ssh x' "--password=@" -p@
""",
    "variables.env": """K3S_TOKEN=@
export DB_PASSWORD='@'
KUBELET_EXTRA_ARGS=--node-labels db-password=@ --config=/etc/k.yaml
""",
    "template.toml.tmpl": """{{ template "base" . }}
{{ $password := "@" }}
x = "{{ printf "@" }}"
{{/* @ */}}
""",
    "netrc": """machine r.example login someone password @
@
""",
    "key.pem": """-----BEGIN RSA PRIVATE KEY-----
@
-----END RSA PRIVATE KEY-----
""",
    "docker-names-of-settings.json": """{"users": {"root": "@", "docker": "@", "containerd": "@", "path": "@"},
 "labels": ["root=@", "path=@", "id=@"], "vault": {"id": "@", "uid": "@", "namespace": "@", "handler": "@"}}""",
    "containerd-names-of-settings.toml": """[site.auth]
id = "@"
root = "@"
state = "@"
handler = "@"
["site".headers]
path = ["@"]
listen = "@"
[stream_processors."io.example"]
args = ["--key", "@"]
env = ["KEY=@"]
path = "@"
""",
    "crio-hook.json": """{"version": "1.0.0", "hook": {"path": "/bin/h", "args": ["h", "--token=@", "--key", "@"]},
 "when": {"annotations": {"path": "@"}}, "stages": ["prestart"]}""",
    "cdi.yaml": """containerEdits:
  mounts:
    - hostPath: /srv
      options: ["username=a", "password=@"]
  hooks:
    - args: ["h", "--token", "@"]
""",
    "k3s-text.yaml": """ca: |
  first
  root: @
  @: x
token: >2-
  root: @
key: @
  root: @
  @: x
flow: {root: @, path: @}
""",
    "k3s-base64.yaml": """ca: |
  @=
token: "@
  @=
  id: @"
---
@=
@==
""",
    "unit-flags.service": """[Service]
User=root
ExecStart=/usr/bin/sshpass -p @/x= -d @/x= ssh
Environment=root=@ PASSWORD=@ id=@
""",
    "variables-with-flags.env": """PASSWORD=@ -x
KUBELET_EXTRA_ARGS="--config=/etc/k --node-labels=a=@ --token @"
TOKEN=abc#@
KEY="first
@="
root=@
""",
    "lines.txt": """curl -u someone:@ https://x
sshpass -p @ ssh y
X-Api-Key @
Authorization: Bearer @
https://hooks.example/services/@
""",
}
"""Each `@` is the place of a secret."""


def configurations() -> Iterator[tuple[str, str, str]]:
    """Yield the name of a configuration, its text, and the secret that is in it."""
    for (name, form), secret in itertools.product(FORMS.items(), SECRETS):
        if not (name == "containerd-bare.toml" and not secret.isalnum()):
            yield f"{name}-{SECRETS.index(secret)}", placed(form, secret), secret


def placed(form: str, secret: str) -> str:
    """Return a form with the secret in each of its places: of `@@`, the second stays."""
    return form.replace("@@", "\0").replace("@", secret).replace("\0", f"{secret}@")
