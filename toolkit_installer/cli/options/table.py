"""The table of all options: every flag, alias, variable and default, in the order of the help."""

from __future__ import annotations

from toolkit_installer.cli.options import engine_rows, installer_rows, toolkit_rows
from toolkit_installer.cli.options.model import Option

OPTIONS: tuple[Option, ...] = (*installer_rows.ROWS, *toolkit_rows.ROWS, *engine_rows.ROWS)

BY_NAME = {option.name: option for option in OPTIONS}

STATUS_CHECK = installer_rows.STATUS_CHECK
STATUS_JSON = installer_rows.STATUS_JSON
DELETION_TIMEOUT = installer_rows.DELETION_TIMEOUT
REFRESH_TIMEOUT = installer_rows.REFRESH_TIMEOUT
DRIVER_TIMEOUT = toolkit_rows.DRIVER_TIMEOUT
UNLESS_INSTALLED = toolkit_rows.UNLESS_INSTALLED
