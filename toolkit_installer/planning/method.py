"""Choose the method by which containers get the GPU on this node, from the facts found. Pure.

`cdi` is possible if each engine that answers looks into the folder of our specification and can read it. If an engine
only has CDI switched off, one edit of its file enables it; that edit is made if `cdi` is requested by name.

`auto` takes the first method that the node supports, trying the one that changes least first, and never takes anything
away: if an engine lists our handlers, or we registered them, pods may select them, future ones too, and no inspection
of the node proves that they do not. Such a node keeps `handlers` until an administrator requests `cdi`. Nor does `auto`
edit an engine's file for CDI: that costs the same restart as the handlers, which serve more pods.

Nor does it take `nri`, the plugin that hands out CDI devices: pods request them by an annotation that pods written for
the other methods do not have, and the plugin is served only while a run waits. Whether the engine accepts the plugin is
checked when it is served (`waiting/plugin.py`), before anything is changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from toolkit_installer.engines import registry
from toolkit_installer.errors import ConfigurationError, EngineRejectedError
from toolkit_installer.settings import EngineName, Method

_NAMED = "--method handlers, or a newer engine, is the way out"
_NO_ANNOTATION = "pods have to ask for it by an annotation; --method nri serves the plugin"
_OFF = "has CDI off, and may not find what the plugin names: switch CDI on in its file, and restart it"
"""containerd 2.1 did not find it in the folders that its file names: the container failed. In 2.4 CDI is always on."""
_BY_US = "has CDI on by an edit that goes with --method cdi: switch CDI on in its file yourself"
_BY_SHIM = (
    "gives devices by CDI to containers that docker itself starts, and to no pod: the kubelet talks to it through "
    "cri-dockerd, which drops CDI devices without an error"
)
_STARTS = "start it; --method handlers configures an engine that is down, too"


class CdiSupport(msgspec.Struct, frozen=True):
    """An engine's CDI support: the facts that decide whether its containers can get devices by CDI."""

    engine: EngineName
    version: str = ""
    """The version of the engine; empty: it does not answer."""
    silence: str = ""
    """The error of an engine that does not answer."""
    folders: tuple[str, ...] | None = None
    """Where it looks for specifications; empty: CDI is off. None: it does not report that."""
    if_on: tuple[str, ...] = ()
    """Where it would look if CDI were not off, if it reports that."""
    folder: str = ""
    """The folder of our specification."""
    reads_it: bool = False
    """Whether the engine looks into that folder."""
    ours: bool = False
    """Whether CDI is on by an edit of ours, which has to stay."""
    recorded: bool = False
    """Whether an earlier run found that it reads our specification, and left the node so."""
    handlers: tuple[str, ...] = ()
    """Handlers of ours that it lists, or that were registered with it."""
    by_shim: bool = False
    """It is docker, and a kubelet on the node reaches it through a program that passes on no CDI devices."""

    @property
    def off(self) -> bool:
        """Whether CDI is switched off in the engine."""
        return self.folders == ()

    @property
    def edited(self) -> bool:
        """Whether its file should enable CDI."""
        return self.off or self.ours


class RejectedMethod(msgspec.Struct, frozen=True):
    """A method that `auto` rejected, and why."""

    method: str
    why: str


class Choice(msgspec.Struct, frozen=True):
    """The method of this run. `why` is empty if it was requested by name."""

    method: Method = Method.HANDLERS
    why: str = ""
    passed_over: tuple[RejectedMethod, ...] = ()

    @property
    def reason(self) -> str:
        """The reason for the method, as text."""
        return explain_choice(self.method, self.why)

    def __str__(self) -> str:
        over = "".join(f"; not {each.method}: {each.why}" for each in self.passed_over)
        return f"{self.method} ({self.reason}{over})"


def explain_choice(method: Method, why: str) -> str:
    """Return the reason for the method: the recorded one, or that there was no choice."""
    return why or ("the default" if method is Method.HANDLERS else "it was asked for")


def choose_method(asked: Method, supports: Sequence[CdiSupport]) -> Choice:
    """Return the method for a node with these engines.

    Raises ConfigurationError if the requested method is not supported, EngineRejectedError if an engine does not
    answer, so that this is unknown.
    """
    if asked is Method.HANDLERS:
        return Choice()
    if asked is Method.NRI:
        for support in supports:
            if support.edited:
                raise _build_refusal(support, asked, f"{support.version} {_OFF if support.off else _BY_US}")
            if why := _explain_elsewhere(support):
                raise _build_refusal(support, asked, why)
        return Choice(Method.NRI)
    if asked is Method.CDI:
        for support in supports:
            require_cdi(support)
        return Choice(Method.CDI)
    against = [f"{support.engine}: {why}" for support in supports if (why := _explain_rejection(support))]
    if not supports:
        against = ["no engine was found"]
    if against:
        over = (RejectedMethod(Method.CDI, "; ".join(against)), RejectedMethod(Method.NRI, _NO_ANNOTATION))
        return Choice(Method.HANDLERS, "of all engines, whatever their release", over)
    return Choice(Method.CDI, "the engine reads CDI specifications already, and has no handlers that pods may need")


def require_cdi(support: CdiSupport) -> None:
    """Raise ConfigurationError if an engine cannot give devices by CDI, EngineRejectedError if that is unknown."""
    if support.recorded and not support.version and not support.by_shim:
        return  # a short outage of an engine is no reason to move the installation
    why = find_obstacle(support)
    if not why:
        return
    if not support.version and not support.by_shim:
        raise EngineRejectedError(f"--method cdi: {support.engine} {why}", hint=f"nothing was changed; {_STARTS}")
    raise _build_refusal(support, Method.CDI, why)


def _build_refusal(support: CdiSupport, method: Method, why: str) -> ConfigurationError:
    """Return the error that says why the method does not work with the engine, and what helps."""
    if support.by_shim:
        return ConfigurationError(
            f"--method {method}: {support.engine} {why}",
            hint="nothing was changed; --method handlers gives pods the GPU by a RuntimeClass",
        )
    hint = _NAMED
    if (folders := support.folders or support.if_on) and not support.reads_it:
        hint = f"--cdi-output-dir {folders[-1]} writes it there; {_NAMED}"
    return ConfigurationError(f"--method {method}: {support.engine} {why}", hint=f"nothing was changed; {hint}")


def find_obstacle(support: CdiSupport) -> str:
    """Return why containers of this engine cannot get devices by CDI; empty if they can, or CDI is only off."""
    if support.by_shim:
        return _BY_SHIM
    if not support.version:
        return f"does not answer, so nobody can tell whether it reads CDI specifications: {support.silence}"
    if registry.newest_cdi_version(support.engine, support.version) is None:
        return f"{support.version} knows no CDI: {registry.first_cdi_release(support.engine)} is the first that does"
    if support.folders is None:
        return f"{support.version} does not tell where it looks for CDI specifications"
    return _explain_elsewhere(support)


def _explain_elsewhere(support: CdiSupport) -> str:
    """Return a text if an engine looks for specifications elsewhere, or would with CDI on; else empty."""
    folders = support.folders or support.if_on
    if folders and not support.reads_it:
        return f"{support.version} looks for CDI specifications in {', '.join(folders)}, and not in {support.folder}"
    return ""


def explain_unreadable(support: CdiSupport, specification: bytes) -> str:
    """Return why this engine cannot read a specification; empty if it can, or does not answer."""
    needed, newest = (
        registry.parse_cdi_version(specification),
        registry.newest_cdi_version(support.engine, support.version),
    )
    if needed is None or newest is None or needed <= newest:
        return ""
    return (
        f"is of version {_text(needed)}, and {support.engine} {support.version} reads none that is newer than "
        f"{_text(newest)}: it would skip it"
    )


def refuse_unreadable(supports: Sequence[CdiSupport], specification: bytes, path: str) -> None:
    """Raise ConfigurationError if one of the engines cannot read the specification that is to be at `path`."""
    for support in supports:
        if why := explain_unreadable(support, specification):
            raise ConfigurationError(
                why, path=path, hint="nothing was changed; update the engine, or use --method handlers"
            )


def _text(version: registry.CdiVersion) -> str:
    return f"{version[0]}.{version[1]}.0"


def _explain_rejection(support: CdiSupport) -> str:
    """Return why `auto` does not take CDI for this engine; empty if it does."""
    if support.recorded and not support.version and not support.by_shim:
        return ""
    if why := find_obstacle(support):
        return f"it {why}"
    if support.edited:
        return "CDI is off in it but for an edit, and switching it on takes the restart that handlers take"
    if support.handlers:
        return f"it has the handlers {', '.join(support.handlers)}, which pods may select; --method cdi takes them away"
    return ""
