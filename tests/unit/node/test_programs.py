"""The node's programs: found beneath its root, with a time limit and nothing inherited."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit_installer.node import programs, signals, trust
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.programs import ProgramError, Programs, ProgramTimeoutError
from toolkit_installer.node.root import Root
from toolkit_installer.node.services import Services
from toolkit_installer.node.signals import Stopped

PYTHON = (sys.executable, "-I", "-S", "-c")


def test_status_output_and_errors_come_back() -> None:
    done = programs.run(
        [*PYTHON, "import os; os.write(1, b'\\xff out'); os.write(2, b'err\\n'); os._exit(3)"], seconds=20
    )
    assert (done.status, done.output, done.errors) == (3, b"\xff out", "err")


def test_a_program_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    # the grandchild holds the pipe's writing end: it is gone when reading meets the end
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = f"import os, time; os.fork(); fd = os.open({str(pipe)!r}, os.O_WRONLY); time.sleep(600)"
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        began = time.monotonic()
        with pytest.raises(ProgramError, match=r"did not end within 0\.5 s"):
            programs.run([*PYTHON, script], seconds=0.5)
        assert time.monotonic() - began < 10
        os.set_blocking(reader, True)
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


@pytest.mark.usefixtures("blocked")
@pytest.mark.parametrize("chatter", ["", "print('x', flush=True)"])
def test_a_program_is_not_waited_for_once_a_signal_stops_us_whatever_it_prints(chatter: str) -> None:
    threading.Timer(0.5, signal.pthread_kill, (threading.get_ident(), signal.SIGTERM)).start()
    began = time.monotonic()
    with pytest.raises(Stopped, match="SIGTERM"):
        programs.run([*PYTHON, f"import time\nwhile True:\n    time.sleep(0.01)\n    {chatter}"], seconds=600)
    assert time.monotonic() - began < 10
    assert signal.SIGTERM in signal.sigpending()  # whoever asked for signals is told of it


@pytest.mark.usefixtures("blocked")
def test_a_program_that_a_cleanup_needs_is_waited_for_all_the_same() -> None:
    signal.raise_signal(signal.SIGTERM)
    with signals.deferred():
        assert programs.run([*PYTHON, "import time; time.sleep(0.5); print('done')"], seconds=60).output == b"done\n"


def test_a_program_gets_its_input_once_and_whole() -> None:
    echo = "import sys, time; text = sys.stdin.read(); time.sleep(1); print(len(text), end='')"
    assert programs.run([*PYTHON, echo], seconds=600, given=b"once" * 100_000).output == b"400000"


def test_a_program_that_wants_none_of_its_input_ends_well() -> None:
    assert programs.run([*PYTHON, "import os; os.close(0); print('done')"], seconds=60, given=b"x" * 10**6).status == 0


def test_a_program_that_ends_and_leaves_a_child_behind_has_ended() -> None:
    began = time.monotonic()
    script = "import os, time\nif os.fork() == 0: time.sleep(600)\nprint('said')"
    done = programs.run([*PYTHON, script], seconds=300)
    assert (done.status, done.output) == (0, b"said\n")
    assert time.monotonic() - began < 60


def test_a_program_that_cannot_be_killed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # as one that hangs in the kernel: nothing that it is sent reaches it
    killed: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda group, _number: killed.append(group))
        began = time.monotonic()
        with pytest.raises(ProgramError, match=r"nor when it was killed: it hangs in the kernel, as PID \d+"):
            programs.run([*PYTHON, "import time; time.sleep(600)"], seconds=0.5)
    assert time.monotonic() - began < 30
    os.killpg(killed[0], signal.SIGKILL)
    os.waitpid(killed[0], 0)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_without_an_end_is_cut_off_killed_and_never_taken_for_the_whole(stream: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    script = f"import sys\nwhile True: sys.{stream}.write('x' * 100000)"
    with pytest.raises(ProgramError, match=f"{re.escape(PYTHON[0])} printed more than 16 MiB") as raised:
        programs.run([*PYTHON, script], seconds=600)
    assert raised.value.path == PYTHON[0]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # kB


# --- programs of the node ---


def at(root: Path, path: str, text: str = "#!/bin/sh\necho ran\n") -> Path:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.chmod(0o755)
    return place


def give_to_a_group(place: Path) -> None:
    """Let some group write there."""
    place.chmod(0o775)
    os.chown(place, 0, 4321)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@as_root
@pytest.mark.parametrize(
    "spoil",
    [
        lambda root: os.chown(root / "opt/tool/prog", 65534, 0),
        lambda root: os.chown(root / "opt/tool", 65534, 0),
        lambda root: os.chown(root / "opt", 65534, 0),
        lambda root: (root / "opt/tool/prog").chmod(0o757),
        lambda root: give_to_a_group(root / "opt/tool/prog"),
        lambda root: (root / "opt/tool").chmod(0o777),
        lambda root: (root / "opt").chmod(0o777),
        lambda root: give_to_a_group(root / "opt/tool"),
        lambda root: root.chmod(0o777),
        lambda root: root.parent.chmod(0o777),
        lambda root: os.chown(root, 65534, 0),
    ],
)
def test_a_program_that_somebody_else_could_have_written_is_not_run(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    root = tmp_path / "around" / "node"
    at(root, "/opt/tool/prog")
    here = Programs(Root(str(root)))
    assert here.runs("/opt/tool/prog")
    spoil(root)
    assert not here.runs("/opt/tool/prog")
    with pytest.raises(ProgramError, match=r"cannot start /opt/tool/prog: .*(writable by|belongs to user)"):
        here.run(["/opt/tool/prog"], seconds=5)


@as_root
def test_a_program_that_others_could_swap_does_not_hide_the_one_that_comes_after_it(tmp_path: Path) -> None:
    os.chown(at(tmp_path, "/usr/local/bin/systemctl"), 65534, 0)
    at(tmp_path, "/usr/bin/systemctl")
    assert Programs(Root(str(tmp_path))).find_program("systemctl") == "/usr/bin/systemctl"


@as_root
def test_what_a_program_calls_by_name_is_looked_for_in_folders_of_roots_alone(tmp_path: Path) -> None:
    folder = tmp_path / "usr/local/sbin"
    folder.mkdir(parents=True)
    (tmp_path / "usr/bin").mkdir()
    here = Programs(Root(str(tmp_path)))
    assert here._folders() == ("/usr/local/sbin", "/usr/bin")
    folder.chmod(0o777)
    assert Programs(Root(str(tmp_path)))._folders() == ("/usr/bin",)


@as_root
def test_a_script_whose_interpreter_somebody_else_could_have_written_is_not_run(tmp_path: Path) -> None:
    interpreter = at(tmp_path, "/opt/sh", "")
    shutil.copy("/bin/sh", interpreter)
    script = at(tmp_path, "/opt/tool/prog", f"#!{interpreter}\necho ran\n")
    assert Programs(Root("/")).run([str(script)], seconds=20).output == b"ran\n"
    os.chown(interpreter, 65534, 0)
    with pytest.raises(ProgramError, match="belongs to user 65534"):
        Programs(Root("/")).run([str(script)], seconds=20)


def test_what_is_run_is_what_was_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = tmp_path / "prog"
    shutil.copy("/bin/true", good)
    real = trust._refuse_program

    def swap_after(fd: int, path: str) -> None:
        real(fd, path)
        good.unlink()
        shutil.copy("/bin/false", good)

    monkeypatch.setattr(trust, "_refuse_program", swap_after)
    assert Programs(Root("/")).run([str(good)], seconds=20).status == 0


def test_a_program_that_cannot_be_started_is_named() -> None:
    with pytest.raises(ProgramError, match="cannot start /no/such/program") as raised:
        programs.run(["/no/such/program"], seconds=1)
    assert raised.value.path == "/no/such/program"


def test_a_program_inherits_neither_blocked_signals_nor_environment_nor_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD_OR_SO", "x")
    script = """if True:
        import os, signal, sys
        print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN)
        print(sorted(os.environ), repr(sys.stdin.read()), os.getpid() == os.getsid(0), os.getcwd())
        """
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signals.HANDLED)
    try:
        done = programs.run([*PYTHON, script], seconds=20)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    mask, rest = done.output.decode().splitlines()
    assert mask == "set() True"  # Python ignores SIGPIPE by itself
    assert rest.replace("'LC_CTYPE', ", "") == "['LANG', 'LC_ALL', 'PATH', 'TMPDIR'] '' True /"


SHOW_TMPDIR = """if True:
    import os
    folder = os.environ["TMPDIR"]
    os.makedirs(f"{folder}/a/b")
    open(f"{folder}/a/left", "w").close()
    os.symlink("/", f"{folder}/a/root")
    print(folder, oct(os.stat(folder).st_mode & 0o777))
"""


def test_each_program_gets_a_private_temporary_folder_that_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(programs, "_TEMPORARY", (str(tmp_path / "none"), str(tmp_path / "file"), str(tmp_path)))
    shown = {programs.run([*PYTHON, SHOW_TMPDIR], seconds=20).output.decode() for _ in range(2)}
    assert len(shown) == 2, "two programs had the same folder"
    for folder, mode in map(str.split, shown):
        assert Path(folder).parent == tmp_path
        assert mode == "0o700"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_program_that_is_killed_leaves_no_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_TEMPORARY", (str(tmp_path),))
    with pytest.raises(ProgramTimeoutError):
        programs.run([*PYTHON, f"{SHOW_TMPDIR}\n    import time; time.sleep(60)"], seconds=0.5)
    assert list(tmp_path.iterdir()) == []


def test_a_program_runs_without_a_temporary_folder_where_nothing_is_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_TEMPORARY", (str(tmp_path / "none"),))
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    done = programs.run([*PYTHON, "import os; print('TMPDIR' in os.environ)"], seconds=20)
    assert done.output == b"False\n"


def test_programs_are_found_beneath_the_root_alone(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    assert Programs(Root(str(tmp_path))).find_program("sh") is None
    (tmp_path / "usr/bin/sh").write_text("")
    assert Programs(Root(str(tmp_path))).find_program("sh") is None
    (tmp_path / "usr/bin/sh").chmod(0o755)
    assert Programs(Root(str(tmp_path))).find_program("sh") == "/usr/bin/sh"


def test_a_node_without_systemctl_knows_no_unit_and_says_so_at_a_restart(tmp_path: Path) -> None:
    services = Services(Programs(Root(str(tmp_path))), SystemCalls())
    assert services.knows("docker.service") is False
    assert services.property("docker.service", "Restart") is None
    with pytest.raises(ProgramError, match="no systemctl"):
        services.restart("docker.service", seconds=1)


def test_the_time_goes_on_while_a_program_of_the_node_runs() -> None:
    ticks: list[None] = []
    with programs.report_progress(lambda: ticks.append(None)):
        programs.run(["/bin/sleep", "0.7"], seconds=10)
    assert ticks
    number = len(ticks)
    programs.run(["/bin/sleep", "0.5"], seconds=10)
    assert len(ticks) == number
