"""What all tests share: hypothesis judges results, never the speed of the machine."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "lorafleet",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("lorafleet")
