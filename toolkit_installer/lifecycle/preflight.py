"""The last look before the first write: what the node, or an engine's own binary, has against the plan."""

from __future__ import annotations

import os
import re

from toolkit_installer.engines.api import EngineFile, Survey
from toolkit_installer.engines.common import stranding
from toolkit_installer.engines.detect import own_container
from toolkit_installer.engines.ownership import OurHandlers
from toolkit_installer.engines.registry import room
from toolkit_installer.errors import ConfigurationError, located
from toolkit_installer.lifecycle import node_checks, plan
from toolkit_installer.lifecycle.facts import EngineFacts, Facts
from toolkit_installer.lifecycle.plan import EngineWork, Plan
from toolkit_installer.lifecycle.target import Target
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import FILE as RECEIPT_FILE
from toolkit_installer.receipt.schema import FOLDER as RECEIPT_FOLDER
from toolkit_installer.settings import EngineSettings, ReloadMode

_RUNTIME_OF_A_TOOLKIT = re.compile(rb"(/[^\"'\s]*)/toolkit/nvidia-container-runtime\b")


def preflight(node: Node, target: Target, facts: Facts, made: Plan) -> None:
    """Raise ConfigurationError, UsageError or EngineDownError where the plan could not be carried out as it is.

    Nothing was changed then, and nothing is asked where nothing is to be changed.
    """
    for seen, work in zip(facts.engines, made.engines, strict=True):
        _engine(node, seen, work)
    if made.empty:
        return
    driver_roots = (target.toolkit.driver_root_ctr_path, target.toolkit.driver_root)
    own_container.refuse(node, target.settings, plan.folders(made.engines), driver_roots)
    if made.toolkit.write:
        node_checks.shell(node)
    node_checks.toolkit_folder(node, made.toolkit.folder)
    node_checks.engine_files(node, made.engines)
    node_checks.specifications(node, made.specifications)


def refuse_contradictions(node: Node, facts: Facts) -> None:
    """Raise ConfigurationError where an engine's files are not to be planned for as they were found."""
    for seen in facts.engines:
        _refuse_unread(seen.target.name, seen.survey, seen.target.settings)
        for file in seen.survey.files:
            _refuse_another_installation(node, file, facts.toolkit.folder)


def _engine(node: Node, seen: EngineFacts, work: EngineWork) -> None:
    engine = room(work.name)
    live = work.survey.live
    _refuse_deadly_signal(work)
    if work.changes and live is not None:
        recorded = dict(seen.recorded.handlers) if seen.recorded is not None else {}
        ours = OurHandlers(seen.target.request.toolkit_folder, frozenset(recorded))
        stranding.refuse(node, engine, work.survey.socket, live, work.goals.files, ours, "or keep the handler's name")
    if work.changes or work.reload_why:
        engine.try_out(node, work.survey, work.goals)


def _refuse_unread(name: str, survey: Survey, settings: EngineSettings) -> None:
    """Raise ConfigurationError if the running engine would not read the file that was named."""
    process = survey.live.process if survey.live is not None else None
    if survey.elsewhere and process is not None:
        raise ConfigurationError(
            f"the running {name} (PID {process.pid}) reads {survey.elsewhere}, and not this file",
            path=settings.config,
            hint="nothing was changed; name that one, or leave --config out; where only single folders of the node are "
            "mounted, mount the folder that it is in, and name it as it is seen there",
        )


def _refuse_deadly_signal(work: EngineWork) -> None:
    """Raise ConfigurationError if a signal on what the files are to be, or on what they go back to, ends the engine."""
    live = work.survey.live
    if live is None or not work.reload_why or work.reload.mode is not ReloadMode.SIGNAL:
        return
    for goal in work.goals.files:
        now = work.survey.file(goal.role).content
        with located(goal.path):
            for content in (goal.target, goal.base, now):
                live.refuse_signal(content, now)


def _refuse_another_installation(node: Node, file: EngineFile, folder: str) -> None:
    """Raise ConfigurationError if the file has handlers of ours from another install folder.

    They would count as the operator's, and come back on cleanup when their files may be gone.
    """
    for match in _RUNTIME_OF_A_TOOLKIT.finditer(file.content or b""):
        other = os.fsdecode(match[1])
        if f"{other}/toolkit" != folder and node.files.is_file(f"{other}/{RECEIPT_FOLDER}/{RECEIPT_FILE}"):
            raise ConfigurationError(
                f"names handlers of another installation, in {other}",
                path=file.path,
                hint=f"take that one back first: toolkit-installer uninstall {other}",
            )
