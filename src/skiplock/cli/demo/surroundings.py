"""What the demo tells its workers: where its servers listen, where files go. Handed over in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MAIL, INVOICE, WEBHOOK, INDEX = "demo-mail", "demo-invoice", "demo-webhook", "demo-index"
QUEUES = {MAIL: "welcome e-mail", INVOICE: "invoice PDF", WEBHOOK: "webhook", INDEX: "re-index"}
CONCURRENCY = {MAIL: 2, INVOICE: 2, WEBHOOK: 2, INDEX: 3}  # per worker process
HOST = "127.0.0.1"
_PREFIX = "SKIPLOCK_DEMO_"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`pace` is how long things take: 1 for people who watch, 0 for as fast as it goes."""

    smtp_port: int
    http_port: int
    output: Path
    pace: float = 1.0

    def to_env(self) -> dict[str, str]:
        return {
            _PREFIX + "SMTP_PORT": str(self.smtp_port),
            _PREFIX + "HTTP_PORT": str(self.http_port),
            _PREFIX + "OUTPUT": str(self.output),
            _PREFIX + "PACE": str(self.pace),
        }

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Surroundings:
        env = os.environ if env is None else env
        return cls(
            smtp_port=int(env[_PREFIX + "SMTP_PORT"]),
            http_port=int(env[_PREFIX + "HTTP_PORT"]),
            output=Path(env[_PREFIX + "OUTPUT"]),
            pace=float(env.get(_PREFIX + "PACE", "1")),
        )

    @property
    def invoices(self) -> Path:
        return self.output / "invoices"

    @property
    def mails(self) -> Path:
        return self.output / "mails"

    @property
    def worker_log(self) -> Path:
        return self.output / "worker.log"

    def clear(self) -> None:
        """Remove what an earlier run left, and nothing else."""
        for folder, pattern in ((self.invoices, "invoice-*"), (self.mails, "mail-*.eml")):
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob(pattern):
                old.unlink()
        self.worker_log.unlink(missing_ok=True)
