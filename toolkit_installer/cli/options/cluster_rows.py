"""The rows of the option table that say whom `--cleanup auto` asks, and about what."""

from __future__ import annotations

import functools

from toolkit_installer.cli.options.model import Group, Kind, Option, Step

_cluster = functools.partial(Option, group=Group.KUBERNETES, step=Step.INSTALLER)

ROWS = (
    _cluster(
        name="daemon_set",
        flags=("--daemonset",),
        kind=Kind.OBJECT,
        variables=("DAEMONSET_NAME",),
        help="The DaemonSet that this pod is of, in the pod's namespace; --cleanup auto asks about it.",
    ),
    _cluster(
        name="node_name",
        kind=Kind.OBJECT,
        help="The node's name in the cluster, as the downward API has it in spec.nodeName.",
    ),
    _cluster(
        name="service_account",
        flags=("--service-account-dir",),
        kind=Kind.PATH,
        default="/var/run/secrets/kubernetes.io/serviceaccount",
        help="The folder of the pod's token, ca.crt and namespace; not the node's but of this file system.",
    ),
    # the kubelet sets these two in every container
    _cluster(
        name="api_host",
        flags=("--kubernetes-service-host",),
        kind=Kind.HOST,
        hidden=True,
        help="Where the API server answers.",
    ),
    _cluster(
        name="api_port",
        flags=("--kubernetes-service-port",),
        kind=Kind.PORT,
        default="443",
        hidden=True,
        help="The port on which it does.",
    ),
)
