"""Turns what was read of a node into findings: one function for each illness. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from toolkit_installer.documents import shown, toml_document
from toolkit_installer.documents.masking import MASK
from toolkit_installer.engines import registry
from toolkit_installer.engines.api import get_adapter, parse_release
from toolkit_installer.engines.containerd import faults, tables
from toolkit_installer.engines.containerd.tables import ConfigFile
from toolkit_installer.engines.ownership import CgroupSetting, Fault, ListedRuntime, is_beneath
from toolkit_installer.engines.registry import normalize_socket
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.reporting import diagnosis_form
from toolkit_installer.reporting.diagnosis_form import EngineSeen, Finding, Illness, NodeFacts, SpecificationSeen, Topic
from toolkit_installer.settings import EngineName
from toolkit_installer.toolkit.payload import CTK, RUNTIMES

_SHIMS: Final = "io.containerd."
"""Prefix of dockerd's names for containerd's shims, which it lists among the runtimes."""
_NVIDIAS: Final = RUNTIMES[0]
"""Prefix of the names of NVIDIA's runtimes, also in older releases."""

SYSTEMD: Final = "systemd"
CGROUPFS: Final = "cgroupfs"
DRIVERS: Final = (SYSTEMD, CGROUPFS)


def diagnose(seen: NodeFacts) -> tuple[Finding, ...]:
    """Return all findings, without duplicates, in the order of the table of illnesses."""
    found = [finding for find in _ALL for finding in find(seen)]
    order = list(Illness)
    return tuple(sorted(dict.fromkeys(found), key=lambda each: order.index(each.illness)))


def list_runtimes(engine: EngineSeen) -> list[ListedRuntime]:
    """Return the runtimes in an engine's files, then those that only the running engine has."""
    try:
        listed = get_adapter(engine.name).list_runtimes(_list_contents(engine), engine.version)
    except ConfigurationError:
        listed = ()  # reported as a broken file
    found = []
    for each in listed:
        default = each.default if engine.default is None else each.name == engine.default
        # the distribution has its own runc, and finds it
        executable = None if engine.generated and not posixpath.isabs(each.executable or "") else each.executable
        if executable is not None and not shown.is_harmless(executable):
            executable = None
        found.append(ListedRuntime(_mask_key(each.name), executable, each.path, each.line, each.systemd, default))
    known = {each.name for each in found}
    for name, path in engine.handlers.items():
        if (
            _mask_key(name) not in known
            and path
            and shown.is_harmless(path)
            and not name.startswith(_SHIMS)
            and not engine.generated
        ):
            where = engine.files[0].path if engine.files else engine.socket
            found.append(ListedRuntime(_mask_key(name), path, where, None, default=name == engine.default))
    return found


def _mask_key(name: str) -> str:
    return name if shown.is_plain_key(name) else MASK


def _list_contents(engine: EngineSeen) -> list[tuple[str, bytes]]:
    return [(file.path, file.content) for file in engine.files]


# --- files that the engine cannot work with ---


def _find_broken_files(seen: NodeFacts) -> Iterator[Finding]:
    for engine in seen.engines:
        causes = f"this program does not edit it, and the next start of {engine.name} may fail"
        for fault in engine.faults:
            yield _convert_fault(seen, engine, Illness.BROKEN_FILE, fault, causes)
        causes = f"{engine.distribution} does not start its containerd again, and no pod starts on this node"
        for fault in engine.template_faults:
            yield _convert_fault(seen, engine, Illness.BROKEN_TEMPLATE, fault, causes, Topic.TEMPLATE)


def _parse_files(engine: EngineSeen) -> list[ConfigFile]:
    """Return the parsed files of a containerd; [] if one cannot be parsed, which is reported as a broken file."""
    if engine.name is not EngineName.CONTAINERD:
        return []
    try:
        return [tables.parse_file("", each.path, each.content, each.by_relative_pattern) for each in engine.files]
    except ConfigurationError:
        return []


def _find_replaced_runtimes(seen: NodeFacts) -> Iterator[Finding]:
    for engine in seen.engines:
        files = _parse_files(engine)
        if len(files) < 2:  # noqa: PLR2004  # one file alone replaces nothing
            continue
        release = parse_release(engine.version)
        version = tables.last_version(files, release)
        views = tables.possible_views(release, version)
        missing = [faults.find_missing_default(view, files, version, release) for view in views]
        stops = "every pod of this node fails" if all(missing) else "with older releases of containerd every pod fails"
        # the newest view that loses settings: its text is true of most releases
        lost = next(
            filter(None, (list(faults.find_replaced(view, files, version, release)) for view in views[::-1])), []
        )
        taken = next(filter(None, missing[::-1]), None)
        if taken is not None and taken.path not in {fault.path for fault in lost}:
            yield _convert_fault(seen, engine, Illness.REPLACED_RUNTIMES, taken, stops)
        for fault in lost:
            is_default = taken is not None and taken.path == fault.path
            causes = stops if is_default else "pods that use one of them fail, or lose what the settings gave them"
            yield _convert_fault(seen, engine, Illness.REPLACED_RUNTIMES, fault, causes)


def _find_mixed_versions(seen: NodeFacts) -> Iterator[Finding]:
    for engine in seen.engines:
        files, release = _parse_files(engine), parse_release(engine.version)
        causes = "the settings of one of the two files are lost without an error"
        if release is None:
            versioned = [file for file in files if file.version is not None]
            for file in versioned[1:]:
                first = versioned[0]
                if file.version != first.version:
                    fault = Fault(
                        file.path,
                        toml_document.line_of(file.content, tables.VERSION),
                        f"is of version {file.version}, and {first.path} of version {first.version}: containerd "
                        "2.0 to 2.2 read one of the two, and 2.3.0 to 2.3.4 do not start",
                        f"write both for the same version (`containerd config migrate`), and restart {engine.name}",
                    )
                    yield _convert_fault(seen, engine, Illness.MIXED_VERSIONS, fault, causes)
            continue
        refused = faults.find_refused_version(files, engine.version, release) if files else None
        if refused is not None:
            yield _convert_fault(seen, engine, Illness.MIXED_VERSIONS, refused, "containerd does not start again")
        for fault in faults.find_unread(files, release):
            yield _convert_fault(seen, engine, Illness.MIXED_VERSIONS, fault, causes)


def _find_unread_files(seen: NodeFacts) -> Iterator[Finding]:
    for engine in seen.engines:
        reads = engine.files[0].path if engine.files else "another file"
        for file in engine.besides:
            what = f"{engine.name} of {engine.distribution} does not read this file: it reads {reads}"
            causes = "changes of this file have no effect"
            hint = f"make the change in {reads}, or in a file that it imports, and remove this file"
            topic = Topic.ENGINE
            yield Finding(Illness.UNREAD_FILE, file.path, None, what, causes, _build_remedy(seen, engine, topic, hint))


# --- leftovers of other installers ---


def _find_leftovers(seen: NodeFacts) -> Iterator[Finding]:
    if seen.other_installer:
        return
    for engine in seen.engines:
        for runtime in list_runtimes(engine):
            if (words := _describe_leftover(seen, runtime)) is None:
                continue
            causes = "every container fails" if runtime.default else f"containers of the handler {runtime.name} fail"
            if _exists(seen, runtime.executable):
                causes = f"nothing updates {runtime.executable}, and nothing removes it"
            hint = (
                f"`toolkit-installer uninstall --runtime {engine.name}` takes out what an installer left in its folder"
                if is_beneath(runtime.executable, seen.toolkit_folder)
                else f"take the handler {runtime.name} out of {runtime.path}, and restart {engine.name}"
            )
            remedy = _build_remedy(seen, engine, Topic.ENGINE, hint)
            yield Finding(Illness.LEFTOVER, runtime.path, runtime.line, words, causes, remedy)
    for hook in seen.hooks:
        if not hook.exists:
            yield Finding(
                Illness.LEFTOVER,
                hook.path,
                hook.line,
                f"runs {hook.program}, which is not there",
                "every container that the hook is for fails with CRI-O and podman",
                f"remove {hook.path}",
            )
    if seen.toolkit_files and not seen.installed:
        yield Finding(
            Illness.LEFTOVER,
            seen.toolkit_folder,
            None,
            f"has {seen.toolkit_files} files of a toolkit, and no receipt of this program",
            "nothing updates these files; k3s and RKE2 register what they find there",
            "`toolkit-installer run` takes them over; to remove them, run `toolkit-installer uninstall` after that",
        )


def _describe_leftover(seen: NodeFacts, runtime: ListedRuntime) -> str | None:
    """Return a message if a handler is a leftover of another installer, else None."""
    program = runtime.executable
    if program is None or not posixpath.basename(program).startswith(_NVIDIAS):
        return None
    in_folder = is_beneath(program, seen.toolkit_folder)
    if seen.installed and in_folder:
        return None
    if not _exists(seen, program):
        return f"the handler {runtime.name} runs {program}, which is not there"
    if in_folder:
        return f"the handler {runtime.name} runs {program}, and no receipt of this program says so"
    return None  # a toolkit from packages


# --- programs ---


def _find_program_faults(seen: NodeFacts) -> Iterator[Finding]:
    for engine in seen.engines:
        for runtime in list_runtimes(engine):
            program = runtime.executable
            if program is None or program not in seen.programs or _describe_leftover(seen, runtime) is not None:
                continue
            whose = "the default runtime" if runtime.default else f"the runtime {runtime.name}"
            causes = "every container fails" if runtime.default else f"containers of the runtime {runtime.name} fail"
            yield from _check_program(seen, engine, program, (runtime.path, runtime.line), whose, causes)
    known = {runtime.executable for engine in seen.engines for runtime in list_runtimes(engine)}
    unloaded: dict[str, list[str]] = {}
    for program, found in seen.programs.items():
        if is_beneath(program, seen.toolkit_folder) and program not in known and not found.loader_exists:
            unloaded.setdefault(found.loader or "", []).append(posixpath.basename(program))
    for loader, names in unloaded.items():
        what = (
            f"{', '.join(names)} need {loader} to start, which is not on the node{_describe_libc(loader, 'they are')}"
        )
        hint = "use a toolkit that was built for this system"
        remedy = _build_remedy(seen, next(iter(seen.engines), None), Topic.PROGRAMS, hint)
        causes = "no container gets a GPU from the toolkit"
        yield Finding(Illness.OTHER_LIBC, seen.toolkit_folder, None, what, causes, remedy)
    if seen.no_low_level is not None:
        path = f"{seen.toolkit_folder}/.config/nvidia-container-runtime/config.toml"
        hint = "install runc or crun, then `toolkit-installer run` again"
        remedy = _build_remedy(seen, next(iter(seen.engines), None), Topic.PROGRAMS, hint)
        causes = "every container of the handler nvidia fails"
        yield Finding(Illness.NO_RUNTIME, path, None, seen.no_low_level, causes, remedy)


def _check_program(
    seen: NodeFacts, engine: EngineSeen, program: str, where: tuple[str, int | None], whose: str, causes: str
) -> Iterator[Finding]:
    found = seen.programs[program]
    if not found.exists:
        hint = f"install {program}, or name in {where[0]} the one that the node has, then restart the engine"
        remedy = _build_remedy(seen, engine, Topic.ENGINE, hint)
        yield Finding(Illness.NO_RUNTIME, *where, f"{whose} is {program}, which is not on the node", causes, remedy)
    elif not found.loader_exists:
        libc = _describe_libc(found.loader, "it is")
        what = f"{whose}, {program}, needs {found.loader} to start, which is not on the node{libc}"
        hint = f"install a build of {posixpath.basename(program)} for this system (musl or glibc, or a static one)"
        remedy = _build_remedy(seen, engine, Topic.PROGRAMS, hint)
        yield Finding(Illness.OTHER_LIBC, *where, what, causes, remedy)


def _describe_libc(loader: str | None, are: str) -> str:
    """Return a message that programs with this loader are built for another libc; "" for scripts."""
    return f": {are} of another libc" if posixpath.basename(loader or "").startswith("ld-") else ""


def _exists(seen: NodeFacts, program: str | None) -> bool:
    return program is not None and program in seen.programs and seen.programs[program].exists


# --- the kubelet ---


def _find_socket_mismatches(seen: NodeFacts) -> Iterator[Finding]:
    named = [each for each in seen.kubelets if each.socket is not None]
    for kubelet in named:
        if kubelet.listens is False:
            serving = [each for each in seen.engines if each.handlers]
            other = f"; {serving[0].name} answers on {serving[0].socket}" if serving else ""
            what = f"the kubelet uses {kubelet.socket} ({kubelet.socket_by}), and no program listens there{other}"
            hint = f"start the engine of {kubelet.socket}, or change containerRuntimeEndpoint and restart the kubelet"
            engine = serving[0] if serving else None
            remedy = _build_remedy(seen, engine, Topic.SOCKET, hint)
            causes = "the node is NotReady"
            yield Finding(Illness.OTHER_SOCKET, str(kubelet.socket), None, what, causes, remedy)
    used = {normalize_socket(str(each.socket)) for each in named}
    if not used:
        return
    shown = ", ".join(sorted(used))
    for name, socket in seen.toolkit_engines:
        if normalize_socket(socket) not in used and not _is_reached_by_shim(name, used):
            what = f"the handlers are configured for {name} on {socket}, and the kubelet uses {shown}"
            causes = "pods with a GPU fail: the kubelet's engine does not know the handlers"
            hint = f"`toolkit-installer uninstall`, then `toolkit-installer run --socket {min(used)}`"
            yield Finding(Illness.OTHER_SOCKET, socket, None, what, causes, hint)
    if seen.crictl is not None:
        path, line, socket = seen.crictl
        if normalize_socket(socket) not in used:
            what = f"names {socket}, and the kubelet uses {shown}"
            causes = "crictl shows other containers than the kubelet's"
            hint = f"write runtime-endpoint: unix://{min(used)} into it"
            yield Finding(Illness.OTHER_SOCKET, path, line, what, causes, hint)


def _is_reached_by_shim(name: str, used: set[str]) -> bool:
    """Return whether a kubelet reaches the engine by a shim's socket."""
    shims = next((row.shim_sockets for row in registry.ENGINES if row.name == name), ())
    return any(posixpath.basename(socket) in shims for socket in used)


def _find_cgroup_mismatches(seen: NodeFacts) -> Iterator[Finding]:
    kubelet = next((each for each in seen.kubelets if each.cgroup_driver is not None), None)
    for engine in seen.engines:
        driver = _find_cgroup_driver(engine)
        if driver is None:
            continue
        if kubelet is not None and driver.name != kubelet.cgroup_driver and _is_used(seen, engine):
            by = _format_place(kubelet.cgroup_path, kubelet.cgroup_line)
            what = f"{engine.name} uses {driver.name}, and the kubelet {kubelet.cgroup_driver} ({by})"
            causes = (
                "pods fail, or the node becomes unstable under load; only a kubelet from 1.31 on with containerd from "
                "2.0 on or CRI-O from 1.28 on takes over the engine's driver"
            )
            edit = get_adapter(engine.name).describe_cgroup_edit(str(kubelet.cgroup_driver))
            hint = f"{edit}, and restart {engine.name}"
            # a declaration of both must change the driver that is not systemd
            topic = Topic.ENGINE_CGROUP if kubelet.cgroup_driver == SYSTEMD else Topic.KUBELET_CGROUP
            remedy = _build_remedy(seen, engine, topic, hint)
            yield Finding(Illness.CGROUP_DRIVER, driver.path, driver.line, what, causes, remedy)
        for runtime in list_runtimes(engine):
            of_runtime = None if runtime.systemd is None else SYSTEMD if runtime.systemd else CGROUPFS
            if of_runtime in (None, driver.name) or runtime.default or _describe_leftover(seen, runtime) is not None:
                continue
            what = f"the runtime {runtime.name} uses {of_runtime}, and the default runtime {driver.name}"
            causes = f"pods of the runtime {runtime.name} fail, or are counted in another cgroup than the kubelet's"
            value = str(driver.name == SYSTEMD).lower()
            hint = f"set SystemdCgroup = {value} in its options, and restart {engine.name}"
            remedy = _build_remedy(seen, engine, Topic.ENGINE, hint)
            yield Finding(Illness.CGROUP_DRIVER, runtime.path, runtime.line, what, causes, remedy)


def _is_used(seen: NodeFacts, engine: EngineSeen) -> bool:
    """Return whether the kubelets use this engine; True if no kubelet names a socket."""
    used = {normalize_socket(str(each.socket)) for each in seen.kubelets if each.socket is not None}
    return not used or normalize_socket(engine.socket) in used or _is_reached_by_shim(engine.name, used)


def _find_cgroup_driver(engine: EngineSeen) -> CgroupSetting | None:
    """Return an engine's cgroup driver, and the file and line that name it; None if unknown."""
    try:
        found = get_adapter(engine.name).read_cgroup_driver(_list_contents(engine), engine.version)
    except ConfigurationError:
        return None  # reported as a broken file
    if engine.cgroup_driver is None:
        return found if found is None or found.name in DRIVERS else None
    path = engine.files[0].path if engine.files else engine.socket
    return msgspec.structs.replace(found or CgroupSetting("", path), name=engine.cgroup_driver)


# --- the driver, its devices and CDI ---


def _find_unlinked_devices(seen: NodeFacts) -> Iterator[Finding]:
    drivers = [_find_cgroup_driver(engine) for engine in seen.engines]
    by_systemd = not drivers or any(each is None or each.name == SYSTEMD for each in drivers)
    if not seen.unlinked or not by_systemd:
        return
    names = ", ".join(path for path, _, _ in seen.unlinked)
    first, major, minor = seen.unlinked[0]
    engine = seen.engines[0] if seen.engines else None
    program, words = _name_ctk(seen), "system create-dev-char-symlinks --create-all"
    in_rule = program if posixpath.isabs(program) else f"/usr/bin/{program}"  # udev has no PATH
    hint = (
        f"`{program} {words}`, and as a udev rule for each boot: "
        f'ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia", RUN+="{in_rule} {words}"'
    )
    yield Finding(
        Illness.NO_DEV_CHAR,
        f"/dev/char/{major}:{minor}",
        None,
        f"is not there, which should lead to {first}; {len(seen.unlinked)} devices have no such link: {names}",
        "running containers lose their GPUs on `systemctl daemon-reload`: NVML then reports an unknown error",
        _build_remedy(seen, engine, Topic.DRIVER, hint),
    )


def _find_missing_libraries(seen: NodeFacts) -> Iterator[Finding]:
    if seen.driver is None or not seen.driver.missing:
        return
    found = seen.driver
    engine = seen.engines[0] if seen.engines else None
    hint = "install the driver's libraries there, or name the root that has them with --driver-root, and `run` again"
    yield Finding(
        Illness.NO_LIBRARIES,
        found.root,
        None,
        f"has no {' and no '.join(found.missing)} ({found.said_by})",
        "containers start, and find no driver in them",
        _build_remedy(seen, engine, Topic.DRIVER, hint),
    )


def _find_specification_faults(seen: NodeFacts) -> Iterator[Finding]:
    for file in seen.specifications:
        yield from _find_unreadable(seen, file)
        if file.missing:
            line, _ = file.missing[0]
            names = ", ".join(dict.fromkeys(path for _, path in file.missing))
            what = f"names {len(file.missing)} files or devices that are not on the node: {names}"
            causes = "each container that asks for its devices fails"
            yield Finding(
                Illness.CDI_WITHOUT_FILES, file.path, line, what, causes, _build_recreation_remedy(seen, file)
            )


def _find_unreadable(seen: NodeFacts, file: SpecificationSeen) -> Iterator[Finding]:
    causes = "the devices in it do not exist for the engine: containers that ask for them fail"
    if (broken := diagnosis_form.find_form_fault(file.path, file.content)) is not None:
        line, why = broken
        yield Finding(Illness.UNREADABLE_CDI, file.path, line, why, causes, _build_recreation_remedy(seen, file))
        return
    for engine in seen.engines:
        needed, newest = (
            registry.parse_cdi_version(file.content),
            registry.newest_cdi_version(engine.name, engine.version),
        )
        folder = normalize_socket(posixpath.dirname(file.path))
        looked_into = [normalize_socket(each).rstrip("/") for each in engine.cdi_folders or ()]
        if engine.version and needed is not None and (newest is None or needed > newest):
            reads = "no CDI" if newest is None else f"versions up to {newest[0]}.{newest[1]}.0"
            why = f"is of version {needed[0]}.{needed[1]}.0, and {engine.name} {engine.version} reads {reads}"
            hint = f"update {engine.name}, or use the handler nvidia in place of CDI"
        elif engine.cdi_folders == ():
            why, hint = (
                f"CDI is off in {engine.name}",
                f"{get_adapter(engine.name).describe_cdi_edit()}, and restart {engine.name}",
            )
        elif engine.cdi_folders is not None and folder not in looked_into:
            why = f"{engine.name} reads CDI specifications from {', '.join(engine.cdi_folders)} alone"
            hint = f"move it to {engine.cdi_folders[0]}"
        else:
            continue
        line = _find_line(file.content, rb"cdiVersion")
        remedy = _build_remedy(seen, engine, Topic.ENGINE, hint)
        yield Finding(Illness.UNREADABLE_CDI, file.path, line, why, causes, remedy)


def _build_recreation_remedy(seen: NodeFacts, file: SpecificationSeen) -> str:
    """Return the remedy for a specification that no engine can use."""
    if file.managed:
        return "`toolkit-installer refresh` makes it again, or `toolkit-installer run` where no run waits"
    hint = f"make it again: `{_name_ctk(seen)} cdi generate --output {file.path}`; or remove it"
    return _build_remedy(seen, next(iter(seen.engines), None), Topic.CDI, hint)


def _name_ctk(seen: NodeFacts) -> str:
    """Return the name or path of NVIDIA's tool for a command line: the toolkit's folder is in no PATH."""
    path = f"{seen.toolkit_folder}/{CTK}"
    return path if _exists(seen, path) else CTK


def _find_line(content: bytes, word: bytes) -> int | None:
    place = content.find(word)
    return None if place < 0 else content.count(b"\n", 0, place) + 1


# --- texts ---


def _convert_fault(
    seen: NodeFacts, engine: EngineSeen, illness: Illness, fault: Fault, causes: str, topic: Topic = Topic.ENGINE
) -> Finding:
    hint = fault.hint.removeprefix("nothing was changed; ") or "correct the file, then restart the engine"
    remedy = _build_remedy(seen, engine, topic, hint)
    return Finding(illness, fault.path, fault.line, fault.reason, causes, remedy)


def _build_remedy(seen: NodeFacts, engine: EngineSeen | None, topic: Topic, hint: str) -> str:
    """Return the remedy for people who may edit the node's files, or for those who declare them elsewhere."""
    distribution = engine.distribution if engine is not None else ""
    host = diagnosis_form.find_host(seen.os_release, seen.signs, distribution)
    return diagnosis_form.choose_remedy(host, topic, engine.name if engine is not None else registry.MOST_USED, hint)


def _format_place(path: str, line: int | None) -> str:
    return path if line is None else f"{path}:{line}"


_ALL: Final[tuple[Callable[[NodeFacts], Iterator[Finding]], ...]] = (
    _find_broken_files,
    _find_replaced_runtimes,
    _find_mixed_versions,
    _find_unread_files,
    _find_leftovers,
    _find_program_faults,
    _find_socket_mismatches,
    _find_cgroup_mismatches,
    _find_unlinked_devices,
    _find_missing_libraries,
    _find_specification_faults,
)
