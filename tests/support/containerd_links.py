"""Symlinks among the files that containerd imports: nodes that have some, and which file gets the handlers."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.fake_node import CONFIG_TOML, DROP_IN

GRPC = "io.containerd.grpc.v1.cri"
FOLDER = "/etc/containerd/conf.d"
ROOT = f'version = 2\nimports = ["{FOLDER}/*.toml"] # ours\n[debug]\nlevel = "info"\n'
B, C = f"{FOLDER}/40-b.toml", f"{FOLDER}/45-c.toml"


def text(name: str) -> str:
    """Return a file of version 2 that has one runtime of this name, its default."""
    place = f'plugins."{GRPC}".containerd'
    return (
        f'version = 2\n[{place}] # {name}\ndefault_runtime_name = "{name}"\n'
        f'[{place}.runtimes.{name}]\nruntime_type = "io.containerd.runc.v2"\n'
    )


CASES: dict[str, tuple[dict[str, str], dict[str, str], str, str]] = {
    # the files beside the root, the links, the root, and the file that gets the handlers
    "to the sibling before it": ({B: text("b")}, {"50-a.toml": "40-b.toml"}, ROOT, B),
    "to the sibling after it": ({B: text("b")}, {"30-a.toml": "40-b.toml"}, ROOT, B),
    "past another's table": ({B: text("b"), C: text("c")}, {"50-a.toml": "40-b.toml"}, ROOT, B),
    "before another's table": ({B: text("b"), C: text("c")}, {"30-a.toml": "40-b.toml"}, ROOT, C),
    "to a sibling without the plugin": ({B: "[metrics]\n"}, {"50-a.toml": "40-b.toml"}, ROOT, CONFIG_TOML),
    "by a name that is no .toml": ({B: text("b")}, {"50-a.conf": "40-b.toml"}, ROOT.replace("*.toml", "*"), B),
    "both by literal paths": (
        {B: text("b")},
        {"50-a.toml": "40-b.toml"},
        ROOT.replace(f'"{FOLDER}/*.toml"', f'"{B}", "{FOLDER}/50-a.toml"'),
        B,
    ),
    "in a chain": ({B: text("b")}, {"50-a.toml": "60-c.toml", "60-c.toml": "40-b.toml"}, ROOT, B),
    "out of the folder": ({"/etc/site.toml": text("b")}, {"50-a.toml": "../../site.toml"}, ROOT, "/etc/site.toml"),
    "to the root": ({}, {"50-a.toml": "../config.toml"}, ROOT, CONFIG_TOML),
    "to the root that has the table": (
        {},
        {"50-a.toml": "../config.toml"},
        ROOT + text("b").partition("\n")[2],
        CONFIG_TOML,
    ),
    "to where our drop-in goes, which leads nowhere": ({}, {"50-a.toml": "99-nvidia.toml"}, ROOT, CONFIG_TOML),
    "to somebody's file where our drop-in goes": ({DROP_IN: text("b")}, {"50-a.toml": "99-nvidia.toml"}, ROOT, DROP_IN),
    "to it, and another's table between": (
        {DROP_IN: text("b"), f"{FOLDER}/60-c.toml": text("c")},
        {"50-a.toml": "99-nvidia.toml"},
        ROOT,
        DROP_IN,
    ),
    "from where our drop-in goes to a sibling": ({B: text("b")}, {"99-nvidia.toml": "40-b.toml"}, ROOT, B),
    "from where our drop-in goes, which leads nowhere": ({}, {"99-nvidia.toml": "nothing.toml"}, ROOT, CONFIG_TOML),
}


def put(name: str, node_root: Path) -> None:
    """Lay a case out on the node whose `/` is at `node_root`."""
    files, links, root, _ = CASES[name]
    for path, content in {CONFIG_TOML: root, **files}.items():
        place = node_root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    link(node_root, links)


def link(node_root: Path, links: dict[str, str]) -> None:
    """Put symlinks, by name and target, into the folder of what is imported."""
    folder = node_root / FOLDER.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    for name, target in links.items():
        os.symlink(target, folder / name)
