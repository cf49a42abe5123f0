"""What holds for every test."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# The same examples on every run and machine: a red check must be a change of ours. HYPOTHESIS_PROFILE=search looks
# for new ones.
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
