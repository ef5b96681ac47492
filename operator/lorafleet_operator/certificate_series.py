"""The series about the operator's certificates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lorafleet.certificates import CertificateFiles
    from prometheus_client import Metric


class CertificateSeries(Collector):
    """When the operator's certificates expire; nothing without any."""

    files: CertificateFiles | None = None

    def describe(self) -> list[GaugeMetricFamily]:
        """Return the families without samples."""
        return [
            GaugeMetricFamily(
                "lorafleet_operator_certificate_expiry_timestamp_seconds",
                "When the certificates in use expire, in seconds since 1970: own, and the last authority.",
                labels=["certificate"],
            ),
            GaugeMetricFamily(
                "lorafleet_operator_certificate_files_refused",
                "1 while the certificate files that are there cannot be used and earlier ones are.",
            ),
        ]

    def collect(self) -> Iterator[Metric]:
        """Yield the families, from any thread."""
        if self.files is None:
            return
        found = self.files.current()
        expiry, refused = self.describe()
        expiry.add_metric(["own"], found.expires_at)
        expiry.add_metric(["authority"], found.authority_expires_at)
        refused.add_metric([], bool(self.files.problem))
        yield from (expiry, refused)
