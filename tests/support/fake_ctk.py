"""A stand-in for nvidia-ctk and the driver that it looks for: what the installer asks of it, in the real one's words.

It is a script, so that made nodes need no root and thousands of runs take no time: its device nodes are plain files.
What it says and refuses is compared with the real one where that runs (tests/e2e/test_cdi.py).
"""

from __future__ import annotations

from pathlib import Path

DRIVER = "/run/nvidia/driver"
"""Where a driver's container has its root."""
VERSION, NEWER = "550.54.15", "570.86.10"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
CONTROL = ("nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools")
NO_MODULES = "no-modules"
"""A file of this name in the device root: the driver's kernel modules are not loaded."""

SCRIPT = r"""#!/bin/sh
# a stand-in for nvidia-ctk
fail() {
    printf 'time="2026-01-01T00:00:00Z" level=error msg="%s"\n' "$1" >&2
    exit 1
}
dry= from= to= vendor= class= hook= root= dev=
for argument; do
    case $argument in
    --dry-run) dry=yes ;;
    --from=*) from=${argument#*=} ;;
    --to=*) to=${argument#*=} ;;
    --vendor=*) vendor=${argument#*=} ;;
    --class=*) class=${argument#*=} ;;
    --nvidia-cdi-hook-path=*) hook=${argument#*=} ;;
    --driver-root=*) root=${argument#*=} ;;
    --dev-root=*) dev=${argument#*=} ;;
    esac
done
[ "$1" = --quiet ] && shift
case "$1 $2" in
"system create-device-nodes")
    [ ! -e "$dev/no-modules" ] || fail 'failed to create devices info: no NVIDIA devices found'
    [ -z "$dry" ] || exit 0
    for node in nvidiactl nvidia-modeset nvidia-uvm nvidia-uvm-tools; do
        [ -e "$dev/dev/$node" ] || : >"$dev/dev/$node" || fail "failed to create NVIDIA control device nodes"
    done
    ;;
"cdi generate")
    nodes=
    for node in "$dev"/dev/nvidia*; do
        [ ! -e "$node" ] || nodes="$nodes
            - path: ${node#"$dev"}
              hostPath: $node"
    done
    [ -n "$nodes" ] ||
        fail 'failed to generate CDI spec: failed to create device CDI specs: no NVIDIA device nodes found'
    version=
    for library in "$root"/usr/lib/*/libnvidia-ml.so.*.* "$root"/usr/lib/*/libcuda.so.*.*; do
        [ ! -e "$library" ] || version=${library##*.so.}
    done
    [ -n "$version" ] || fail 'failed to generate CDI spec: failed to create edits common for entities: failed '\
'to create driver library discoverer: failed to determine driver version (\"\"): failed to locate libcuda.so: '\
'libcuda.so.*.*: not found\nlibcuda.so.*.*: not found\nfailed to locate libcuda.so: libnvidia-ml.so.*.*: not found'\
'\nlibnvidia-ml.so.*.*: not found'
    printf '%s\n' "---
cdiVersion: 0.5.0
kind: $vendor/$class
devices:
    - name: all
      containerEdits:
        deviceNodes:$nodes
containerEdits:
    env:
        - NVIDIA_VISIBLE_DEVICES=void
    hooks:
        - hookName: createContainer
          path: $hook
          args:
            - nvidia-cdi-hook
            - update-ldcache
            - --folder
            - /usr/lib/x86_64-linux-gnu
    mounts:"
    for library in "$root"/usr/lib/*/*.so."$version"; do
        printf '%s\n' "        - hostPath: $library
          containerPath: ${library#"$root"}
          options:
            - ro
            - nosuid
            - nodev
            - rbind
            - rprivate"
    done
    ;;
"cdi transform")
    while IFS= read -r line; do
        case $line in
        *"hostPath: $from/"*) printf '%s\n' "${line%%"$from/"*}${to%/}/${line#*"$from/"}" ;;
        *) printf '%s\n' "$line" ;;
        esac
    done
    ;;
*) fail "unknown command $1 $2" ;;
esac
"""


def into(payload: Path) -> Path:
    """Give a payload this nvidia-ctk, and return the payload."""
    program = payload / "usr/bin/nvidia-ctk"
    program.unlink(missing_ok=True)
    program.write_text(SCRIPT)
    program.chmod(0o755)
    return payload


def driver(root: Path, version: str = VERSION, nodes: tuple[str, ...] = ("nvidia0", *CONTROL)) -> Path:
    """Make a driver's root of this version, in place of any other there, and return it."""
    libraries, devices = root / LIBRARIES, root / "dev"
    for folder in (libraries, devices):
        folder.mkdir(parents=True, exist_ok=True)
    for old in libraries.iterdir():
        old.unlink()
    for name in ("libcuda.so", "libnvidia-ml.so"):
        (libraries / f"{name}.{version}").write_text("no library: what counts is its name\n")
        (libraries / f"{name}.1").symlink_to(f"{name}.{version}")
    for name in nodes:
        (devices / name).touch()
    return root
