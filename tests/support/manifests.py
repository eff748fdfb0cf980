"""What `kubectl apply -k` sends of daemonset/: rendered by kustomize, and held to the schemas of Kubernetes.

    python -m tests.support.manifests

renders every kustomization there and validates each object strictly, against each of the newest minors.
"""

from __future__ import annotations

import functools
import json
import pickle
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import kubernetes_validate
import yaml
from kubernetes_validate.utils import all_versions

from tests.support.api_server import real
from tests.support.built import commands, go_tools
from tests.support.built.go_tools import GoToolError
from toolkit_installer.cli.options import build
from toolkit_installer.cli.options.help import COMMANDS
from toolkit_installer.settings import Program, Settings

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / "daemonset"
MINORS = 5
"""How many: Kubernetes supports three, and clusters lag behind."""
_SECONDS = 60
_DEFINED_BY_OTHERS = ("monitoring.coreos.com/v1",)
"""API versions that Kubernetes itself has not. Of these, promtool knows the rules, in the e2e tests."""

Object: TypeAlias = dict[str, Any]


class ManifestError(Exception):
    """kustomize makes nothing of a folder; the message is its own."""


def read_only_without_tmp(spec: Object) -> list[str]:
    """Return a pod's containers with a read-only root and no folder for temporary files at /tmp."""
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    return [
        container["name"]
        for container in (*spec.get("initContainers", []), *spec["containers"])
        if container.get("securityContext", {}).get("readOnlyRootFilesystem")
        and not any(
            mount["mountPath"] == "/tmp" and "emptyDir" in volumes[mount["name"]]  # noqa: S108  # a container's own
            for mount in container.get("volumeMounts", [])
        )
    ]


def kustomizations() -> list[str]:
    """Return the folders that are applied, relative to daemonset/."""
    return sorted(str(path.parent.relative_to(FOLDER)) for path in FOLDER.rglob("kustomization.yaml"))


@functools.cache
def text(name: str) -> str:
    """Return a kustomization as kustomize renders it. Raises ManifestError, and GoToolError where it cannot be had."""
    return built(FOLDER / name)


def built(folder: Path) -> str:
    """Return what kustomize makes of any folder. Raises as `text` does."""
    kustomize = go_tools.build(go_tools.KUSTOMIZE) / "kustomize"
    return commands.output([kustomize, "build", folder], ManifestError, seconds=_SECONDS)


def rendered(name: str) -> list[Object]:
    """Return its objects, new ones each time. Raises as `text` does."""
    return objects(text(name))


def objects(of: str) -> list[Object]:
    """Return the objects of a stream of YAML documents; what is no object, as after a last separator, is left out.

    libyaml reads them ten times as fast as PyYAML by itself, and a text that was read before is faster still: hundreds
    of tests read manifests.
    """
    found: list[Object] = pickle.loads(_pickled(of))  # noqa: S301  # our own
    return found


@functools.cache
def _pickled(of: str) -> bytes:
    return pickle.dumps([each for each in yaml.load_all(of, yaml.CSafeLoader) if each is not None])


def one(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """Return the only object of a kind, or of a kind and a name."""
    (found,) = (each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"]))
    return found


def daemon_set(name: str = "base") -> Object:
    """Return the DaemonSet of a kustomization."""
    return one(rendered(name), "DaemonSet")


def pod(name: str = "base") -> Object:
    """Return what it says of its pods."""
    found: Object = daemon_set(name)["spec"]["template"]["spec"]
    return found


def containers(name: str = "base") -> dict[str, Object]:
    """Return their containers by name, those that come first among them."""
    spec = pod(name)
    return {each["name"]: each for each in (*spec.get("initContainers", []), *spec["containers"])}


def environment(container: Object) -> dict[str, str]:
    """Return a container's variables."""
    return {each["name"]: each.get("value", "from-the-downward-api") for each in container["env"]}


def settings(name: str = "base", container: str = "toolkit-installer") -> Settings:
    """Return what the program makes of a container's command and environment."""
    found = containers(name)[container]
    program, command = found["command"]
    assert command in COMMANDS
    given = environment(found) | {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    return build.build({}, given, Program(program), looking_for_driver=command == "wait-driver")


def node(*taints: tuple[str, str], **labels: str) -> Object:
    """Return a node as the API server has it, with these taints and labels."""
    found = real("node")
    found["metadata"]["labels"] = {"kubernetes.io/os": "linux", **labels}
    found["spec"]["taints"] = [{"key": key, "effect": effect} for key, effect in taints]
    return found


def flat(value: Any, at: str = "") -> dict[str, Any]:
    """Return the leaves of a document by their paths; members of lists are known by their names where they have one."""
    if isinstance(value, dict) and value:
        return {path: leaf for key, each in value.items() for path, leaf in flat(each, f"{at}/{key}").items()}
    if isinstance(value, list) and value:
        keys = [each.get("name", index) if isinstance(each, dict) else index for index, each in enumerate(value)]
        return {
            path: leaf
            for key, each in zip(keys, value, strict=True)
            for path, leaf in flat(each, f"{at}/{key}").items()
        }
    return {at: value}


def may_get(objects: list[Object], path: str) -> bool:
    """Tell whether these objects let their ServiceAccount get what is at this path of the API, as RBAC reads them."""
    account = {key: one(objects, "ServiceAccount")["metadata"][key] for key in ("name", "namespace")}
    prefix, _, rest = path.lstrip("/").partition("/")
    group, _, rest = rest.partition("/") if prefix == "apis" else ("", "", rest)
    _, *parts = rest.split("/")  # what follows the version
    namespace = parts[1] if parts[0] == "namespaces" else None
    resource, name = parts[2:] if namespace is not None and parts[2:] else parts
    for binding in (each for each in objects if each["kind"] in ("RoleBinding", "ClusterRoleBinding")):
        here = binding["kind"] == "ClusterRoleBinding" or binding["metadata"]["namespace"] == namespace
        if not here or {"kind": "ServiceAccount", **account} not in binding["subjects"]:
            continue
        role = (binding["roleRef"]["kind"], binding["roleRef"]["name"], binding["metadata"].get("namespace"))
        (found,) = (
            each
            for each in objects
            if (each["kind"], each["metadata"]["name"], each["metadata"].get("namespace")) == role
            or (role[0] == "ClusterRole" == each["kind"] and role[1] == each["metadata"]["name"])
        )
        for rule in found["rules"]:
            named = name in rule.get("resourceNames", [name])
            if group in rule["apiGroups"] and resource in rule["resources"] and "get" in rule["verbs"] and named:
                return True
    return False


def minors() -> list[str]:
    """Return the newest minors of which there are schemas, oldest first."""
    found = {tuple(map(int, version.split(".")[:2])) for version in all_versions()}
    return [f"{major}.{minor}" for major, minor in sorted(found)[-MINORS:]]


def problems(found: Mapping[str, Any], versions: list[str]) -> Iterator[str]:
    """Yield in words what the schemas of these minors say against an object of Kubernetes; unknown fields count."""
    title = f"{found['kind']} {found['metadata'].get('name')}"
    content = json.dumps(found, sort_keys=True)
    for version in () if found["apiVersion"] in _DEFINED_BY_OTHERS else versions:
        if (problem := _problem(content, version)) is not None:
            yield f"{title}: Kubernetes {version}{problem}"


@functools.cache
def _problem(content: str, version: str) -> str | None:
    """Return the first one. Of most objects that are rendered again nothing has changed; a schema has megabytes."""
    try:
        kubernetes_validate.validate(json.loads(content), version, strict=True)
    except kubernetes_validate.ValidationError as error:
        place = ".".join(map(str, error.absolute_path))
        return f": {place}: {error.message}"
    except kubernetes_validate.SchemaNotFoundError as error:
        return f" has no {error.kind} of {error.api_version}"
    return None


def main() -> int:
    """Render and validate all; return the exit code."""
    versions, seen, wrong = minors(), set(), 0
    try:
        for name in kustomizations():
            for found in rendered(name):
                if (content := json.dumps(found, sort_keys=True)) in seen:
                    continue
                seen.add(content)
                for problem in problems(found, versions):
                    print(f"daemonset/{name}: {problem}", file=sys.stderr)  # noqa: T201  # what it is for
                    wrong += 1
    except (GoToolError, ManifestError) as error:
        print(f"make check: the manifests cannot be rendered: {error}", file=sys.stderr)  # noqa: T201  # likewise
        return 1
    if not wrong:
        print(f"{len(seen)} objects of daemonset/ are valid in Kubernetes {', '.join(versions)}")  # noqa: T201  # likewise
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
