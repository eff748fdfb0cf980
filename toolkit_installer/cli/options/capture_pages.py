"""What the help says of `capture` and `replay`."""

from __future__ import annotations

from toolkit_installer.cli.options.capture_rows import EACH, HTML, KEEP_SECRETS, PAYLOAD
from toolkit_installer.cli.options.page import Page
from toolkit_installer.cli.options.table import OPTIONS, STATUS_JSON

_LOOKING = frozenset({"node_root", "host_root", "log_format", "debug", "runtime"})

CAPTURE = Page(
    about="Keep in FILE, a new one, all that plan looks at on this node, of each engine, so that replay can plan for "
    "it anywhere. FILE may be - for the standard output. Secrets are replaced by digests. Writes nothing else, reloads "
    "nothing, takes no lock; takes the options of run, and needs none.",
    argument="FILE",
    options=(KEEP_SECRETS, *OPTIONS),
    common=_LOOKING | {KEEP_SECRETS.name},
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
    options=(STATUS_JSON, EACH, PAYLOAD, HTML, *OPTIONS),
    common=frozenset(
        {STATUS_JSON.name, EACH.name, PAYLOAD.name, HTML.name, "runtime", "set_as_default", "restart_mode"}
    )
    | {"install_dir", "driver_root", "log_format", "debug"},
    examples=(
        "toolkit-installer replay node.capture",
        "toolkit-installer replay captures/ --set-as-default=false",
        "toolkit-installer replay captures/ --payload /srv/toolkit-1.20 --json",
    ),
)
