"""Which way containers get the GPU: a table of what is found and what follows from it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from toolkit_installer.errors import ConfigurationError, EngineRejectedError, InstallerError
from toolkit_installer.planning import method
from toolkit_installer.planning.method import CdiSupport, Choice, choose_method, find_obstacle
from toolkit_installer.settings import EngineName, Method

HANDLERS, CDI, AUTO = Method.HANDLERS, Method.CDI, Method.AUTO
GOOD = CdiSupport(
    EngineName.CONTAINERD, "v2.1.4", folders=("/etc/cdi", "/var/run/cdi"), folder="/var/run/cdi", reads_it=True
)
DOCKER = msgspec.structs.replace(GOOD, engine=EngineName.DOCKER, version="28.5.2+dfsg4")


def found(**differently: Any) -> CdiSupport:
    return msgspec.structs.replace(GOOD, **differently)


OFF = found(folders=(), reads_it=False)
DOWN = found(version="", silence="connection refused", folders=None, reads_it=False)

# what was found, what `cdi` comes to (an error, or nothing), and whether `auto` takes it
TABLE: dict[str, tuple[tuple[CdiSupport, ...], type[InstallerError] | None, bool]] = {
    "it reads the folder": ((GOOD,), None, True),
    "it reads the folder, and handlers are registered": ((found(handlers=("nvidia",)),), None, False),
    "CDI is off, and nothing else is in the way": ((OFF,), None, False),
    "CDI is off, and it would look elsewhere": (
        (found(folders=(), if_on=("/etc/cdi",), reads_it=False),),
        ConfigurationError,
        False,
    ),
    "CDI is on by our own edit": ((found(ours=True),), None, False),
    "it looks elsewhere": ((found(folders=("/etc/cdi",), reads_it=False),), ConfigurationError, False),
    "it tells no folders": ((found(folders=None, reads_it=False),), ConfigurationError, False),
    "it is too old": ((found(version="1.6.20~ds1", folders=(), reads_it=False),), ConfigurationError, False),
    "its release is unknown": ((found(version="of an unknown release"),), ConfigurationError, False),
    "it is down": ((DOWN,), EngineRejectedError, False),
    "it is down, and CDI was the way before": ((msgspec.structs.replace(DOWN, recorded=True),), None, True),
    "it was restarted with CDI off since": ((found(folders=(), reads_it=False, recorded=True),), None, False),
    "it was moved to another folder since": (
        (found(folders=("/etc/cdi",), reads_it=False, recorded=True),),
        ConfigurationError,
        False,
    ),
    "a kubelet reaches it through cri-dockerd": (
        (msgspec.structs.replace(DOCKER, by_shim=True),),
        ConfigurationError,
        False,
    ),
    "a kubelet reaches it through cri-dockerd, and CDI was the way before": (
        (msgspec.structs.replace(DOWN, engine=EngineName.DOCKER, recorded=True, by_shim=True),),
        ConfigurationError,
        False,
    ),
    "both of two engines read it": ((GOOD, DOCKER), None, True),
    "the second of two does not": ((GOOD, found(engine=EngineName.DOCKER, version="24.0")), ConfigurationError, False),
}


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE)
def test_each_way_is_taken_or_refused_by_what_was_found(
    case: tuple[tuple[CdiSupport, ...], type[InstallerError] | None, bool],
) -> None:
    ways, refusal, taken = case
    assert choose_method(HANDLERS, ways) == Choice()
    if refusal is None:
        assert choose_method(CDI, ways) == Choice(CDI)
    else:
        with pytest.raises(refusal, match="nothing was changed") as raised:
            choose_method(CDI, ways)
        assert raised.type is refusal
        assert raised.value.hint
    choice = choose_method(AUTO, ways)
    assert choice.method is (CDI if taken else HANDLERS)
    assert choice.why
    assert [each.method for each in choice.passed_over] == ([] if taken else ["cdi", "nri"])
    assert all(each.why for each in choice.passed_over)


def test_what_is_chosen_says_which_engine_was_against_it_and_why() -> None:
    said = str(choose_method(AUTO, (GOOD, msgspec.structs.replace(DOCKER, handlers=("nvidia",)))))
    assert said.startswith("handlers (")
    assert "not cdi: docker: it has the handlers nvidia, which pods may select" in said
    assert "containerd" not in said
    assert str(choose_method(CDI, (GOOD,))) == "cdi (it was asked for)"


def test_without_any_engine_there_is_nothing_to_take_but_handlers() -> None:
    assert choose_method(AUTO, ()).method is HANDLERS


def test_where_it_looks_elsewhere_the_refusal_names_the_option_that_writes_there() -> None:
    with pytest.raises(ConfigurationError) as raised:
        choose_method(CDI, (found(folders=("/etc/cdi", "/opt/cdi"), reads_it=False),))
    assert "looks for CDI specifications in /etc/cdi, /opt/cdi, and not in /var/run/cdi" in raised.value.reason
    assert "--cdi-output-dir /opt/cdi" in (raised.value.hint or "")


def test_what_the_plugin_names_is_not_found_where_the_engine_looks_elsewhere() -> None:
    with pytest.raises(ConfigurationError, match=r"--method nri: containerd v2[.]1[.]4 looks for") as raised:
        choose_method(Method.NRI, (found(folders=("/etc/cdi",), reads_it=False),))
    assert "--cdi-output-dir /etc/cdi" in (raised.value.hint or "")


@pytest.mark.parametrize("if_on", [(), ("/etc/cdi",), ("/var/run/cdi",)], ids=["mum", "elsewhere", "there"])
def test_what_the_plugin_names_may_not_be_found_where_cdi_is_off(if_on: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r"--method nri: containerd v2[.]1[.]4 has CDI off"):
        choose_method(Method.NRI, (found(folders=(), if_on=if_on, reads_it="/var/run/cdi" in if_on),))


def test_cdi_that_is_on_by_our_edit_alone_would_be_off_once_the_plugin_is_the_way() -> None:
    with pytest.raises(ConfigurationError, match="has CDI on by an edit that goes with --method cdi"):
        choose_method(Method.NRI, (found(ours=True),))


@pytest.mark.parametrize("way", [GOOD, DOWN, found(folders=None, reads_it=False)], ids=["on", "down", "mum"])
def test_the_plugin_is_served_unless_the_engine_does_not_read_the_specification(
    way: CdiSupport,
) -> None:
    assert choose_method(Method.NRI, (way,)) == Choice(Method.NRI)


NEWER = b"---\ncdiVersion: 0.7.0\nkind: nvidia.com/gpu\n"


@pytest.mark.parametrize(
    "name, version, reads",
    [
        (EngineName.CONTAINERD, "v1.7.15", False),
        (EngineName.CONTAINERD, "v1.7.16", True),
        (EngineName.CONTAINERD, "1.7.24~ds1", True),
        (EngineName.DOCKER, "26.0.2", False),
        (EngineName.DOCKER, "26.1.0", True),
        (EngineName.CRIO, "1.29.9", False),
        (EngineName.CRIO, "1.30.0", True),
    ],
)
def test_a_specification_that_is_newer_than_the_engines_library_is_refused(
    name: EngineName, version: str, *, reads: bool
) -> None:
    ways = (found(engine=name, version=version),)
    method.refuse_unreadable(ways, b"cdiVersion: 0.5.0\n", "/var/run/cdi/x.yaml")
    if reads:
        method.refuse_unreadable(ways, NEWER, "/var/run/cdi/x.yaml")
        return
    with pytest.raises(ConfigurationError, match=r"is of version 0\.7\.0, and .* reads none that is newer than 0\."):
        method.refuse_unreadable(ways, NEWER, "/var/run/cdi/x.yaml")


@pytest.mark.parametrize(
    "engine, before, since",
    [
        (EngineName.CONTAINERD, "1.6.33", "1.7"),
        (EngineName.DOCKER, "24.0.9", "25.0"),
        (EngineName.CRIO, "1.22.5", "1.23"),
    ],
)
def test_a_release_before_the_first_that_knows_cdi_is_told_which_that_is(
    engine: EngineName, before: str, since: str
) -> None:
    said = find_obstacle(CdiSupport(engine, before, folders=("/etc/cdi",), folder="/etc/cdi"))
    assert said == f"{before} knows no CDI: {since} is the first that does"
    assert (
        find_obstacle(CdiSupport(engine, f"{since}.0", folders=("/etc/cdi",), folder="/etc/cdi", reads_it=True)) != said
    )
