"""Which tests `make test-changed` chooses: those nearest to what was changed, and the whole program once."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.support import changed

IMPORTED = {
    "tests/unit/documents/test_toml_edit.py": {"toolkit_installer.documents.toml_edit"},
    "tests/unit/engines/test_config.py": {"toolkit_installer.engines.containerd.config", "tests.support.payloads"},
    "tests/unit/started.py": {"toolkit_installer.documents.toml_text"},
    "tests/node/test_drift.py": {"tests.support.payloads"},
    "tests/node/test_waking.py": {"toolkit_installer.documents.toml_edit"},
}
IMPORTERS = {
    "toolkit_installer.documents.toml_text": {"toolkit_installer.documents.toml_edit"},
    "toolkit_installer.documents.toml_edit": {"toolkit_installer.engines.containerd.config"},
}


def importers(module: str) -> Iterable[str]:
    return IMPORTERS.get(module, ())


@pytest.mark.parametrize(
    "path, tests",
    [
        ("toolkit_installer/documents/toml_edit.py", ["tests/unit/documents/test_toml_edit.py"]),
        ("toolkit_installer/documents/toml_text.py", ["tests/unit/documents/test_toml_edit.py"]),
        ("toolkit_installer/cli/commands.py", []),
        ("tests/support/payloads.py", ["tests/node/test_drift.py", "tests/unit/engines/test_config.py"]),
        ("tests/node/test_drift.py", ["tests/node/test_drift.py"]),
    ],
)
def test_of_a_module_the_nearest_tests_are_run_and_the_whole_program_always(path: str, tests: list[str]) -> None:
    assert changed.nearest([path], IMPORTED, importers) == sorted([*tests, changed.WHOLE_PROGRAM])


@pytest.mark.parametrize("path", ["README.md", "docs/safety.md", "tests/data/corpus/docker/a.json"])
def test_of_what_is_no_module_none_is_near(path: str) -> None:
    assert changed.nearest([path], IMPORTED, importers) == []


def test_modules_that_import_each_other_come_to_an_end() -> None:
    both = {"toolkit_installer.a": ["toolkit_installer.b"], "toolkit_installer.b": ["toolkit_installer.a"]}
    assert changed.nearest(["toolkit_installer/a.py"], {}, lambda module: both[module]) == [changed.WHOLE_PROGRAM]


def test_imports_within_functions_and_of_modules_by_their_package_count() -> None:
    source = "import a.b\ndef f():\n    from c import d\n    from e.f import g as h\n"
    assert changed.imports_in(source) == {"a.b", "c", "c.d", "e.f", "e.f.g"}


def test_a_package_is_named_by_its_folder() -> None:
    assert changed.module_of("toolkit_installer/engines/__init__.py") == "toolkit_installer.engines"
    assert changed.module_of("images/gather.py") is None


def test_the_file_that_tries_the_whole_program_is_there() -> None:
    assert (changed.PROJECT / changed.WHOLE_PROGRAM).is_file()
