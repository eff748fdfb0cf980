"""Files of engines, and a CDI specification, as the tests of a diagnosis have them."""

from __future__ import annotations

GRPC, CRI = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
CONFIG, DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/site.toml"
RUNTIME = f'plugins."{GRPC}".containerd.runtimes'
SOUND = f"""version = 2
imports = ["/etc/containerd/conf.d/*.toml"]
[{RUNTIME}.runc]
runtime_type = "io.containerd.runc.v2"
[{RUNTIME}.runc.options]
SystemdCgroup = true
"""
SPECIFICATION = """cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: all
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - hostPath: /dev/other
      path: /dev/seen-as
containerEdits:
  hooks:
  - args:
    - nvidia-cdi-hook
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  mounts:
  - containerPath: /usr/lib/libcuda.so.1
    hostPath: /usr/lib/libcuda.so.1
    options:
    - ro
"""
