"""The options that only `capture` and `replay` have."""

from __future__ import annotations

from toolkit_installer.cli.options.model import Group, Kind, Option, Step

KEEP_SECRETS = Option(
    "keep_secrets",
    Kind.FLAG,
    Group.JOB,
    Step.INSTALLER,
    no_variable=True,
    help="Leave all values in the capture as they are, for a file that stays with you. Otherwise only values of keys "
    "that are known to be harmless stay, and stand-ins take the place of all others.",
)
KEY_FILE = Option(
    "key_file",
    Kind.LOCAL_PATH,
    Group.JOB,
    Step.INSTALLER,
    no_variable=True,
    default_note="a new key, kept nowhere",
    help="Make the stand-ins with the key in this file of at least 32 random bytes. Captures with the same key have "
    "the same stand-ins, so that compare can tell whether a hidden value was changed. Keep the file to yourself.",
)
EACH = Option(
    "each",
    Kind.FLAG,
    Group.JOB,
    Step.INSTALLER,
    no_variable=True,
    help="Print what plan would print on each node, before what they come to together. Of one capture alone it is "
    "printed without being asked for.",
)
HTML = Option(
    "html",
    Kind.LOCAL_PATH,
    Group.JOB,
    Step.INSTALLER,
    no_variable=True,
    help="Write what all of them come to as a page, too: one new file, which a browser opens without a network and can "
    "search.",
)
ENGINE_VERSION = Option(
    "engine_version",
    Kind.VERSIONS,
    Group.JOB,
    Step.INSTALLER,
    no_variable=True,
    default_note="what each engine says",
    help="Plan as if this engine were of this version, where a node has it, such as containerd=2.2. Its files, and all "
    "else that it says of itself, stay as they were captured, and its own binary is not asked.",
)
PAYLOAD = Option(
    "payload",
    Kind.LOCAL_PATH,
    Group.JOB,
    Step.INSTALLER,
    no_variable=True,
    help="Plan with the toolkit's files in this folder, as --toolkit-source-root would on the node, in place of those "
    "that the capture was made with.",
)
