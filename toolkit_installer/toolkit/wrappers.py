"""The wrapper scripts: each has the name of a toolkit's program and runs NAME.real with the environment that it needs.

They are written for any POSIX shell and start no other program: a minimal node has no grep. An engine runs them as
root for every container, so the text is plain, quoted throughout, and leaves arguments, environment, standard streams
and exit code alone. Their own variables begin with `tki_`: a variable that the caller exported would stay exported.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from toolkit_installer.errors import UsageError
from toolkit_installer.toolkit.payload import CLI, CTK, HOOK, HOOK_2021, RUNTIMES

WRAPPED = (CLI, HOOK, HOOK_2021, CTK, *RUNTIMES)
"""The programs that get a wrapper; one of the hook's two names is a symlink (Payload.hook is the other)."""

_CONFIGURED = frozenset({HOOK, HOOK_2021, *RUNTIMES})

CONFIG_NAME = ".config/nvidia-container-runtime/config.toml"
"""The toolkit's configuration, relative to its folder."""

_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SIGNATURE = "# Written by toolkit-installer"
"""The begin of the second line of this program's wrappers, which those of other installers do not have."""

_HEAD = f"""\
#!/bin/sh
{SIGNATURE}, and written again by its next run.
tki_folder={{folder}}
tki_real=$tki_folder/{{name}}.real
"""
_CONFIG = f"tki_config=$tki_folder/{CONFIG_NAME}\n"

# A subshell, because writing to a stderr without a reader would kill the wrapper.
_SAY = """
tki_say() {{
	(printf '%s: %s\\n' {name} "$*" >&2)
}}
"""

_FAIL = """
tki_fail() {
	tki_say "$1"
	exit 127
}
"""

# containerd parses stdout and stderr of `ps` and `state` as one text, and kills the container if that fails: so the
# message is printed only for `create` and `run`, and if the command fails because no runtime can be run. A global flag
# without `=` takes the next word as its value, except the flags listed. An unlisted flag suppresses the message.
_SAY_AT_START = """
# tki_say_at_start MESSAGE ARGUMENT...: says it if the subcommand is create or run, and nothing before any other.
tki_say_at_start() {
	tki_message=$1
	shift
	while [ $# -gt 0 ]; do
		case $1 in
		create | run)
			tki_say "$tki_message"
			return
			;;
		-*=* | -- | -debug | --debug | -systemd-cgroup | --systemd-cgroup) ;;
		-*) [ $# -eq 1 ] || shift ;;
		*) return ;;
		esac
		shift
	done
}
"""

# `-ef` is not in POSIX before 2024, but dash, bash, busybox and toybox have it. If the shell lacks it, or another
# program's script leads back here, the variable ends the loop. A candidate that is a wrapper of this folder is skipped.
_FALLBACK = """
# tki_try FILE ARGUMENT...: becomes FILE, unless it cannot be run or is a wrapper of this folder again.
tki_try() {{
	tki_file=$1
	shift
	[ -f "$tki_file" ] && [ -x "$tki_file" ] || return 0
	for tki_own in {runtimes}; do
		# shellcheck disable=SC3013 # the variable below ends the circle where test has no -ef
		[ "$tki_file" -ef "$tki_folder/$tki_own" ] && return 0
	done
	tki_say_at_start "$tki_reason: running $tki_file instead" "$@"
	TOOLKIT_INSTALLER_FALLBACK=$tki_folder
	export TOOLKIT_INSTALLER_FALLBACK
	exec "$tki_file" "$@"
}}

# tki_fall_back REASON ARGUMENT...: becomes the node's low-level runtime.
tki_fall_back() {{
	tki_reason=$1
	shift
	if [ "${{TOOLKIT_INSTALLER_FALLBACK-}}" = "$tki_folder" ]; then
		tki_say "$tki_reason, and the low-level runtime leads back to $tki_folder: giving up"
		exit 127
	fi
	tki_path=${{PATH-}}:{usual_path}
	for tki_candidate in {low_level}; do
		case $tki_candidate in
		/*) tki_try "$tki_candidate" "$@" ;;
		*)
			set -f
			IFS=:
			for tki_directory in $tki_path; do
				case $tki_directory in
				/*) tki_try "$tki_directory/$tki_candidate" "$@" ;;
				esac
			done
			unset IFS
			set +f
			;;
		esac
	done
	tki_say "$tki_reason, and none of these runtimes was found:" {low_level}
	exit 127
}}
"""

_DRIVER = """
tki_driver=absent
if [ -r {modules} ]; then
	while read -r tki_module _; do
		if [ "$tki_module" = nvidia ]; then
			tki_driver=loaded
			break
		fi
	done <{modules}
fi

[ "$tki_driver" = loaded ] || tki_fall_back 'the NVIDIA driver is not loaded' "$@"
[ -f "$tki_config" ] || tki_fall_back "$tki_config is missing" "$@"
[ -f "$tki_real" ] || tki_fall_back "$tki_real is missing" "$@"
[ -x "$tki_real" ] || tki_fall_back "$tki_real is not executable" "$@"
"""

_REQUIRE_CONFIG = """[ -f "$tki_config" ] || tki_fail "$tki_config is missing"\n"""
_REQUIRE_REAL = """\
[ -f "$tki_real" ] || tki_fail "$tki_real is missing"
[ -x "$tki_real" ] || tki_fail "$tki_real is not executable"
"""

_PATH = """
PATH=$tki_folder:${{PATH:-{usual_path}}}
export PATH
"""

# Never leave an empty entry in LD_LIBRARY_PATH: it means the current folder, which any user may control.
_LIBRARY_PATH = """\
LD_LIBRARY_PATH=$tki_folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
"""

# Toolkit 1.18 and later read the first, the runtimes of earlier releases the second.
_CONFIG_VARIABLES = """\
NVIDIA_CTK_CONFIG_FILE_PATH=$tki_config
XDG_CONFIG_HOME=$tki_folder/.config
export NVIDIA_CTK_CONFIG_FILE_PATH XDG_CONFIG_HOME
"""

_EXEC = """exec "$tki_real" "$@"\n"""
# The hook reads no variable before 1.18; every release knows the flag.
_EXEC_HOOK = """exec "$tki_real" -config "$tki_config" "$@"\n"""


def build_wrapper(name: str, *, folder: str, low_level: Sequence[str], modules: str = "/proc/modules") -> str:
    """Return the wrapper of `name` (one of WRAPPED).

    `folder` is the toolkit's folder on the node, absolute; `low_level` the fallback runtimes, by absolute path or by
    name, of which the first that exists is run; `modules` the file that lists the kernel's modules.

    Raises UsageError for a folder that cannot be put into PATH.
    """
    if not posixpath.isabs(folder) or "\0" in folder or ":" in folder:
        raise UsageError(
            f"the toolkit cannot be installed in {folder!r}",
            hint="choose an absolute path without a colon: the folder is put into PATH",
        )
    config = _CONFIG if name in _CONFIGURED else ""
    head = _HEAD.format(folder=quote_word(folder), name=name) + config + _SAY.format(name=quote_word(name))
    path = _PATH.format(usual_path=_USUAL_PATH)
    if name in RUNTIMES:
        fallback = _FALLBACK.format(
            runtimes=" ".join(RUNTIMES), low_level=" ".join(map(quote_word, low_level)), usual_path=_USUAL_PATH
        )
        driver = _DRIVER.format(modules=quote_word(modules))
        return f"{head}{_SAY_AT_START}{fallback}{driver}{path}{_CONFIG_VARIABLES}{_EXEC}"
    head += f"{_FAIL}\n{_REQUIRE_REAL}"
    if name in {HOOK, HOOK_2021}:
        return f"{head}{_REQUIRE_CONFIG}{path}{_CONFIG_VARIABLES}{_EXEC_HOOK}"
    return f"{head}{path}{_LIBRARY_PATH if name == CLI else ''}{_EXEC}"


def quote_word(value: str) -> str:
    """Return any `value` as one word of a POSIX shell; always in quotes, so that it is easy to find."""
    return "'" + value.replace("'", "'\\''") + "'"
