#!/bin/sh
# Written by toolkit-installer, and written again by its next run.
tki_folder='/usr/local/nvidia/toolkit'
tki_real=$tki_folder/nvidia-container-runtime.real
tki_config=$tki_folder/.config/nvidia-container-runtime/config.toml

tki_say() {
	(printf '%s: %s\n' 'nvidia-container-runtime' "$*" >&2)
}

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

# tki_try FILE ARGUMENT...: becomes FILE, unless it cannot be run or is a wrapper of this folder again.
tki_try() {
	tki_file=$1
	shift
	[ -f "$tki_file" ] && [ -x "$tki_file" ] || return 0
	for tki_own in nvidia-container-runtime nvidia-container-runtime.cdi nvidia-container-runtime.legacy; do
		# shellcheck disable=SC3013 # the variable below ends the circle where test has no -ef
		[ "$tki_file" -ef "$tki_folder/$tki_own" ] && return 0
	done
	tki_say_at_start "$tki_reason: running $tki_file instead" "$@"
	TOOLKIT_INSTALLER_FALLBACK=$tki_folder
	export TOOLKIT_INSTALLER_FALLBACK
	exec "$tki_file" "$@"
}

# tki_fall_back REASON ARGUMENT...: becomes the node's low-level runtime.
tki_fall_back() {
	tki_reason=$1
	shift
	if [ "${TOOLKIT_INSTALLER_FALLBACK-}" = "$tki_folder" ]; then
		tki_say "$tki_reason, and the low-level runtime leads back to $tki_folder: giving up"
		exit 127
	fi
	tki_path=${PATH-}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
	for tki_candidate in '/usr/bin/runc' 'runc' 'crun'; do
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
	tki_say "$tki_reason, and none of these runtimes was found:" '/usr/bin/runc' 'runc' 'crun'
	exit 127
}

tki_driver=absent
if [ -r '/proc/modules' ]; then
	while read -r tki_module _; do
		if [ "$tki_module" = nvidia ]; then
			tki_driver=loaded
			break
		fi
	done <'/proc/modules'
fi

[ "$tki_driver" = loaded ] || tki_fall_back 'the NVIDIA driver is not loaded' "$@"
[ -f "$tki_config" ] || tki_fall_back "$tki_config is missing" "$@"
[ -f "$tki_real" ] || tki_fall_back "$tki_real is missing" "$@"
[ -x "$tki_real" ] || tki_fall_back "$tki_real is not executable" "$@"

PATH=$tki_folder:${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
export PATH
NVIDIA_CTK_CONFIG_FILE_PATH=$tki_config
XDG_CONFIG_HOME=$tki_folder/.config
export NVIDIA_CTK_CONFIG_FILE_PATH XDG_CONFIG_HOME
exec "$tki_real" "$@"
