"""Property tests draw the same examples on every run, so that a green run stays green; `--hypothesis-profile=explore`
draws new ones, and more of them."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("default", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")
