#!/bin/sh
# Written by toolkit-installer, and written again by its next run.
tki_folder='/usr/local/nvidia/toolkit'
tki_real=$tki_folder/nvidia-container-runtime-hook.real
tki_config=$tki_folder/.config/nvidia-container-runtime/config.toml

tki_say() {
	(printf '%s: %s\n' 'nvidia-container-runtime-hook' "$*" >&2)
}

tki_fail() {
	tki_say "$1"
	exit 127
}

[ -f "$tki_real" ] || tki_fail "$tki_real is missing"
[ -x "$tki_real" ] || tki_fail "$tki_real is not executable"
[ -f "$tki_config" ] || tki_fail "$tki_config is missing"

PATH=$tki_folder:${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
export PATH
NVIDIA_CTK_CONFIG_FILE_PATH=$tki_config
XDG_CONFIG_HOME=$tki_folder/.config
export NVIDIA_CTK_CONFIG_FILE_PATH XDG_CONFIG_HOME
exec "$tki_real" -config "$tki_config" "$@"
