#!/bin/sh
# Written by toolkit-installer, and written again by its next run.
tki_folder='/usr/local/nvidia/toolkit'
tki_real=$tki_folder/nvidia-container-cli.real

tki_say() {
	(printf '%s: %s\n' 'nvidia-container-cli' "$*" >&2)
}

tki_fail() {
	tki_say "$1"
	exit 127
}

[ -f "$tki_real" ] || tki_fail "$tki_real is missing"
[ -x "$tki_real" ] || tki_fail "$tki_real is not executable"

PATH=$tki_folder:${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
export PATH
LD_LIBRARY_PATH=$tki_folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
exec "$tki_real" "$@"
