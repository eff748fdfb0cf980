"""What a receipt may speak of: each claim that an installer could not have made is refused by its own words."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from toolkit_installer.engines.crio.desired import DROP_IN_ROLE
from toolkit_installer.engines.docker.engine import ROLE
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import schema, trust
from toolkit_installer.receipt.schema import EngineRecord, FileRecord, OriginalFile, Receipt, State
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import EngineName

INSTALL_DIR = "/usr/local/nvidia"
STORE, TOOLKIT = f"{INSTALL_DIR}/.toolkit-installer", f"{INSTALL_DIR}/toolkit"
RECEIPT = f"{STORE}/receipt.json"
DOCKER, SITE = "/etc/docker/daemon.json", "/srv/site.conf"
OURS = f'{{"runtimes": {{"nvidia": {{"path": "{TOOLKIT}/nvidia-container-runtime"}}}}}}\n'.encode()
THEIRS, OTHER = b'{"auths": {}}\n', b"somebody else's"
SPECIFICATION = "/etc/cdi/nvidia.com-gpu.yaml"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def file(path: str = DOCKER, role: str = ROLE, written: bytes = OURS) -> FileRecord:
    return FileRecord(role, path, OriginalFile(sha256(THEIRS), 0o644, 0, 0), (sha256(written),))


def engine(*files: FileRecord, name: EngineName = EngineName.DOCKER, handler: str = TOOLKIT) -> EngineRecord:
    handlers = (("nvidia", f"{handler}/nvidia-container-runtime"),)
    return EngineRecord(name, "/run/docker.sock", None, handlers, None, files or (file(),))


HONEST = Receipt(State.INSTALLED, "1", TOOLKIT, ("nvidia-ctk",), (TOOLKIT,), "/run/nvidia/toolkit.pid", (), (engine(),))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in (STORE, TOOLKIT, "/etc/docker", "/etc/cdi", "/srv/empty"):
        (tmp_path / folder[1:]).mkdir(parents=True)
    (tmp_path / STORE[1:]).chmod(0o700)
    (tmp_path / DOCKER[1:]).write_bytes(OURS)
    (tmp_path / SITE[1:]).write_bytes(OTHER)
    return tmp_path


def load(root: Path, receipt: Receipt) -> Receipt | None:
    """Return what is believed of a receipt that lies on the node."""
    place = root / RECEIPT[1:]
    place.write_bytes(schema.encode(receipt))
    place.chmod(0o600)
    return load_as_it_lies(root)


def load_as_it_lies(root: Path) -> Receipt | None:
    node = Node.open(str(root), "/host")
    return trust.load(node, ReceiptStore(node, INSTALL_DIR))


def test_what_an_installer_wrote_is_believed_and_nothing_is_no_receipt(root: Path) -> None:
    assert load_as_it_lies(root) is None
    assert load(root, HONEST) == HONEST


REFUSED = [
    ({"toolkit_folder": "/usr/local/other/toolkit"}, "names the toolkit folder /usr/local/other/toolkit, which is not"),
    ({"toolkit_folder": INSTALL_DIR}, f"names the toolkit folder {INSTALL_DIR}, which is not the one beside it"),
    ({"toolkit_files": ("notes.txt",)}, "names notes.txt, which is no file of the toolkit"),
    ({"toolkit_files": ("nvidia-ctk/nvidia-ctk",)}, "names nvidia-ctk/nvidia-ctk, which is no file of the toolkit"),
    (
        {"toolkit_files": ("libnvidia-container.so/x",)},
        "names libnvidia-container.so/x, which is no file of the toolkit",
    ),
    ({"engines": (engine(), engine())}, "names docker twice"),
    ({"engines": (engine(handler="/usr/bin"),)}, "names the handler nvidia, whose executable /usr/bin/"),
    ({"engines": (engine(file(role="drop_in")),)}, f"names {DOCKER} as 'drop_in' of docker, which has no such file"),
    ({"engines": (engine(file(SITE)),)}, f"names {SITE}, which has nothing of this installer's in it, nor the name"),
    ({"engines": (engine(file(SITE, written=OTHER)),)}, f"names {SITE}, whose content cannot have been written by"),
    ({"engines": (engine(file(RECEIPT)),)}, f"names {RECEIPT}, which is a file of this installer's own, as one of"),
    ({"engines": (engine(file(f"{TOOLKIT}/daemon.json")),)}, "which is a file of this installer's own, as one of"),
    ({"specifications": (file(SPECIFICATION),)}, f"names {SPECIFICATION}, which is no CDI specification"),
    ({"specifications": (file("/etc/cdi/gpu.yaml", schema.SPECIFICATION_ROLE),)}, "which is no CDI specification"),
    ({"specifications": (file("/etc/cdi/a-b.yamlx", schema.SPECIFICATION_ROLE),)}, "which is no CDI specification"),
    ({"specifications": (file(f"{STORE}/a-b.yaml", schema.SPECIFICATION_ROLE),)}, "own, as a CDI specification"),
    ({"pid_file": SITE}, f"names the PID file {SITE}, which is none"),
    ({"folders": ("/srv/empty",)}, "names the folder /srv/empty, which holds nothing of this installer's"),
    ({"pid_folders": ("/srv/empty",)}, "names the folder /srv/empty, which holds nothing of this installer's"),
    ({"pid_folders": (TOOLKIT,)}, f"names the folder {TOOLKIT}, which holds nothing of this installer's"),
]


@pytest.mark.parametrize("change, words", REFUSED, ids=lambda value: None if isinstance(value, dict) else value[:60])
def test_a_claim_that_no_installer_makes_is_refused_and_says_which_it_is(
    root: Path, change: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(root, msgspec.structs.replace(HONEST, **change))
    assert words in str(refused.value)
    assert refused.value.path == RECEIPT


UNUSUAL = "/srv/dockerd.conf"


@pytest.mark.parametrize(
    "content,believed",
    [
        (OURS, True),
        # edited by somebody since: our handler is still in it
        (b"# " + OURS, True),
        # what stood there before, as after a rollback
        (THEIRS, True),
        (None, True),
        (OTHER, False),
    ],
)
def test_a_file_of_an_unusual_name_is_believed_by_what_is_in_it(
    root: Path, content: bytes | None, *, believed: bool
) -> None:
    if content is not None:
        (root / UNUSUAL[1:]).write_bytes(content)
    receipt = msgspec.structs.replace(HONEST, engines=(engine(file(UNUSUAL)),))
    if believed:
        assert load(root, receipt) == receipt
    else:
        with pytest.raises(ConfigurationError, match="has nothing of this installer's in it"):
            load(root, receipt)


def test_a_folder_in_place_of_a_recorded_file_is_left_to_the_reader_to_refuse(root: Path) -> None:
    (root / UNUSUAL[1:]).mkdir()
    receipt = msgspec.structs.replace(HONEST, engines=(engine(file(UNUSUAL)),))
    assert load(root, receipt) == receipt


@pytest.mark.parametrize("name", ["/etc/docker/site.json", "/srv/daemon.json.old"])
def test_a_file_of_the_engines_is_told_by_its_name_wherever_it_lies(root: Path, name: str) -> None:
    (root / name[1:]).write_bytes(OTHER)
    receipt = msgspec.structs.replace(HONEST, engines=(engine(file(name)),))
    assert load(root, receipt) == receipt


@pytest.mark.parametrize("folder", ["/etc/crio/crio.conf.d", "/srv/crio"])
def test_a_file_of_any_name_is_the_engines_where_the_engine_reads_every_file(root: Path, folder: str) -> None:
    """The engine's folder may be a symlink, and the receipt has the file's own name."""
    (root / "etc/crio").mkdir()
    (root / folder[1:]).mkdir()
    if folder != "/etc/crio/crio.conf.d":
        (root / "etc/crio/crio.conf.d").symlink_to(folder)
    (root / folder[1:] / "site").write_bytes(OTHER)
    own = engine(file(f"{folder}/site", DROP_IN_ROLE), name=EngineName.CRIO)
    receipt = msgspec.structs.replace(HONEST, engines=(own,))
    assert load(root, receipt) == receipt


@pytest.mark.parametrize("trace", [b"runtimes", b"imports", b"hooks_dir", TOOLKIT.encode()])
def test_our_text_is_known_by_any_trace_and_a_specification_by_the_toolkit_only(root: Path, trace: bytes) -> None:
    (root / DOCKER[1:]).write_bytes(trace)
    receipt = msgspec.structs.replace(HONEST, engines=(engine(file(written=trace)),))
    assert load(root, receipt) == receipt
    (root / SPECIFICATION[1:]).write_bytes(trace)
    specification = file(SPECIFICATION, schema.SPECIFICATION_ROLE, trace)
    receipt = msgspec.structs.replace(HONEST, specifications=(specification,))
    if trace == TOOLKIT.encode():
        assert load(root, receipt) == receipt
    else:
        with pytest.raises(ConfigurationError, match="whose content cannot have been written"):
            load(root, receipt)


def test_a_folder_that_holds_something_is_not_removed_and_so_is_no_reason_to_refuse(root: Path) -> None:
    receipt = msgspec.structs.replace(HONEST, folders=("/srv", "/srv/gone", SITE))
    assert load(root, receipt) == receipt


def test_a_folder_of_a_recorded_file_is_ours_though_the_file_is_gone(root: Path) -> None:
    (root / DOCKER[1:]).unlink()
    (root / "srv/docker").symlink_to("../etc/docker")
    for path in (DOCKER, "/srv/docker/daemon.json"):
        receipt = msgspec.structs.replace(HONEST, folders=("/etc/docker",), engines=(engine(file(path)),))
        assert load(root, receipt) == receipt


def test_an_empty_folder_is_ours_where_it_bears_our_mark(root: Path) -> None:
    Node.open(str(root), "/host").files.make_folders("/srv/made")
    receipt = msgspec.structs.replace(HONEST, folders=("/srv/made",))
    assert load(root, receipt) == receipt


def _link(place: Path) -> None:
    place.rename(place.with_name("elsewhere"))
    place.symlink_to("elsewhere")


LAID: list[tuple[Callable[[Path], None], str]] = [
    (_link, "is no regular file"),
    (lambda place: place.chmod(0o620), "can be written to by others"),
    (lambda place: place.chmod(0o602), "can be written to by others"),
    (lambda place: os.link(place, place.with_name("other")), "has another name as well"),
    (lambda place: place.parent.chmod(0o720), "others can write to the receipt's folder"),
    (lambda place: place.parent.chmod(0o702), "others can write to the receipt's folder"),
]


@pytest.mark.parametrize("lay, words", LAID, ids=[words for _, words in LAID])
def test_a_receipt_that_somebody_else_could_have_laid_there_is_refused(
    root: Path, lay: Callable[[Path], None], words: str
) -> None:
    load(root, HONEST)
    lay(root / RECEIPT[1:])
    with pytest.raises(ConfigurationError, match=words):
        load_as_it_lies(root)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("owner,believed", [(0, True), (1000, False)])
def test_a_receipt_of_another_user_is_refused(root: Path, owner: int, *, believed: bool) -> None:
    load(root, HONEST)
    os.chown(root / RECEIPT[1:], owner, owner)
    if believed:
        assert load_as_it_lies(root) == HONEST
    else:
        with pytest.raises(ConfigurationError, match="belongs to user 1000"):
            load_as_it_lies(root)
