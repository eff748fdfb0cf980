"""What was asked of the NRI plugin. Pure."""

from __future__ import annotations

from toolkit_installer.cli.options.resolve import Answers
from toolkit_installer.errors import UsageError
from toolkit_installer.settings import EngineName, Method, NriSettings


def asked(answers: Answers, method: Method) -> NriSettings | None:
    """Return how the plugin is to be served, None: it is not, which goes for a run that does not wait, too.

    Raises UsageError for what is missing, and where docker is the engine that was named: it asks no plugin.
    """
    if not answers.flag("enable_nri_plugin") and method is not Method.NRI:
        return None
    flag = "--method nri" if method is Method.NRI else "--enable-nri-plugin"
    namespace = answers.text_or_none("nri_namespace")
    if namespace is None:
        raise UsageError(
            f"{flag} serves the pods of a namespace, and NRI_NAMESPACE is not set",
            hint="set it to the namespace of this pod, from the downward API's metadata.namespace: pods there may have "
            "management devices",
        )
    if answers.given("runtime") and answers.words("runtime") == (EngineName.DOCKER,):
        raise UsageError(
            f"{flag}: docker asks no NRI plugin about its containers",
            hint="leave the plugin out, or name the engine that the kubelet uses: containerd or crio",
        )
    if answers.flag("no_daemon"):
        return None
    more = answers.words("nri_management_cdi_device_namespaces")
    index = answers.by_name["nri_plugin_index"].value
    assert isinstance(index, int)  # noqa: S101  # it has a default, and its reader makes numbers
    return NriSettings(
        namespaces=tuple(dict.fromkeys((namespace, *more))),
        socket=answers.text("nri_socket"),
        index=index,
        strict=answers.flag("nri_strict"),
    )
