"""What the help says of `capture`, `replay` and `compare`."""

from __future__ import annotations

from toolkit_installer.cli.options.capture_rows import EACH, ENGINE_VERSION, HTML, KEEP_SECRETS, KEY_FILE, PAYLOAD
from toolkit_installer.cli.options.page import Page
from toolkit_installer.cli.options.table import OPTIONS, STATUS_JSON

_SETTINGS = (
    "Every option and variable of run is accepted too and changes nothing here: each node is replayed with those that "
    "its capture in AFTER was made with."
)
_LOOKING = frozenset({"node_root", "host_root", "log_format", "debug", "runtime"})

CAPTURE = Page(
    about="Keep in FILE, a new one, all that plan looks at on this node, of each engine, so that replay can plan for "
    "it anywhere. FILE may be - for the standard output. Values that may be secret are hidden. Writes nothing else, "
    "reloads nothing, takes no lock; takes the options of run, and needs none.",
    argument="FILE",
    options=(KEEP_SECRETS, KEY_FILE, *OPTIONS),
    common=_LOOKING | {KEEP_SECRETS.name, KEY_FILE.name},
    examples=(
        "toolkit-installer capture --node-root /host /host/tmp/node.capture",
        "toolkit-installer capture --runtime containerd --keep-secrets node.capture",
    ),
)
REPLAY = Page(
    about="Show what run would do on the nodes that ARCHIVE has captures of, without them: the plan of one, or of many "
    "how they would fare, alike ones together. ARCHIVE is a file of capture, or a folder, of which the files that end "
    "in .capture are meant. The options of run stand in for those that the captures were made with. Exits with 0 only "
    "if no node would refuse.",
    argument="ARCHIVE...",
    options=(STATUS_JSON, EACH, PAYLOAD, ENGINE_VERSION, HTML, *OPTIONS),
    common=frozenset(row.name for row in (STATUS_JSON, EACH, PAYLOAD, ENGINE_VERSION, HTML))
    | {"runtime", "set_as_default", "restart_mode", "install_dir", "driver_root", "log_format", "debug"},
    examples=(
        "toolkit-installer replay node.capture",
        "toolkit-installer replay captures/ --set-as-default=false",
        "toolkit-installer replay captures/ --engine-version containerd=2.2",
        "toolkit-installer replay captures/ --payload /srv/toolkit-1.20 --json",
    ),
)
COMPARE = Page(
    about="Show what became of nodes between two sets of captures, such as from before and after a rollout: what "
    "changed that replaying BEFORE with the settings of AFTER did not foretell, managed files that are not what a run "
    "wrote, and nodes that are behind the others. BEFORE and AFTER are each a file of capture, or a folder, of which "
    "the files that end in .capture are meant; nodes are paired by name. Exits with 0 only if nothing of this was "
    "found, and all could be told.",
    argument="BEFORE AFTER",
    options=(STATUS_JSON, *(row for row in OPTIONS if row.name in {"log_format", "debug"})),
    notes=(_SETTINGS,),
    examples=(
        "toolkit-installer compare before/ after/",
        "toolkit-installer compare before/node-7.capture after/node-7.capture --json",
    ),
)
