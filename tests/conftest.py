"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# A slow machine is no failure: nothing here depends on the clock.
settings.register_profile("project", deadline=None)
settings.load_profile("project")
