"""The rows of the option table that say whom `--cleanup auto` asks, and about what."""

from __future__ import annotations

from toolkit_installer.cli.options.model import Group, Kind, Option, Step

ROWS = (
    Option(
        name="daemon_set",
        flags=("--daemonset",),
        kind=Kind.OBJECT,
        group=Group.KUBERNETES,
        step=Step.INSTALLER,
        variables=("DAEMONSET_NAME",),
        help="The DaemonSet that this pod is of, in the pod's namespace; --cleanup auto asks about it.",
    ),
    Option(
        name="node_name",
        flags=("--node-name",),
        kind=Kind.OBJECT,
        group=Group.KUBERNETES,
        step=Step.INSTALLER,
        variables=("NODE_NAME",),
        help="The node's name in the cluster, as the downward API has it in spec.nodeName.",
    ),
    Option(
        name="service_account",
        flags=("--service-account-dir",),
        kind=Kind.PATH,
        group=Group.KUBERNETES,
        step=Step.INSTALLER,
        variables=("SERVICE_ACCOUNT_DIR",),
        default="/var/run/secrets/kubernetes.io/serviceaccount",
        help="The folder of the pod's token, ca.crt and namespace; not the node's but of this file system.",
    ),
    # the kubelet sets these two in every container
    Option(
        name="api_host",
        flags=("--kubernetes-service-host",),
        kind=Kind.HOST,
        group=Group.KUBERNETES,
        step=Step.INSTALLER,
        variables=("KUBERNETES_SERVICE_HOST",),
        hidden=True,
        help="Where the API server answers.",
    ),
    Option(
        name="api_port",
        flags=("--kubernetes-service-port",),
        kind=Kind.PORT,
        group=Group.KUBERNETES,
        step=Step.INSTALLER,
        variables=("KUBERNETES_SERVICE_PORT",),
        default="443",
        hidden=True,
        help="The port on which it does.",
    ),
)
