"""Events as log records of the logger `skiplock`, and how the command line writes them: text or JSON lines.

An application that runs a worker by itself calls `subscribe(app.events)` and handles the records as it likes: the text
is complete, and `record.skiplock` holds the fields. Arguments of jobs are never logged.

| level   | what                                                                                                  |
|---------|-------------------------------------------------------------------------------------------------------|
| DEBUG   | attempts that start, complete or snooze; waiting jobs that became ready; tracebacks of retries        |
| INFO    | workers and their processes that start and stop; attempts cancelled or given back; fires of schedules |
| WARNING | attempts that failed and will be retried, statements that failed and will be repeated, lost workers   |
| ERROR   | jobs that are dead, with the traceback; schedules that cannot fire                                    |
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from skiplock.core.errors import SkiplockError
from skiplock.core.events import Event, Events
from skiplock.core.failure import describe
from skiplock.core.job import Job
from skiplock.core.outcome import Failure, Verdict
from skiplock.core.size import size_as_text

LOGGER = "skiplock"
LEVELS = {
    "worker_started": logging.INFO,
    "worker_stopping": logging.INFO,
    "worker_stopped": logging.INFO,
    "worker_lost": logging.WARNING,
    "worker_rescued": logging.WARNING,
    "reconciled": logging.WARNING,
    "claimed": logging.DEBUG,
    "settled": logging.DEBUG,
    "attempt_started": logging.DEBUG,
    "attempt_ended": logging.DEBUG,  # told for every job, so it is heard at DEBUG only
    "attempt_failed": logging.WARNING,  # at most; see _VERDICTS
    "job_dead": logging.ERROR,
    "settle_refused": logging.WARNING,
    "handler_stuck": logging.WARNING,
    "handler_unstuck": logging.INFO,
    "loop_blocked": logging.WARNING,
    "loop_unblocked": logging.INFO,
    "claim_failed": logging.WARNING,
    "settle_failed": logging.WARNING,
    "beat_failed": logging.WARNING,
    "listen_failed": logging.WARNING,
    "hook_failed": logging.WARNING,
    "promoted": logging.DEBUG,
    "schedule_fired": logging.INFO,
    "schedule_held": logging.INFO,
    "schedule_failed": logging.ERROR,
    "tick_failed": logging.WARNING,
    "task_process_started": logging.DEBUG,
    "task_process_ended": logging.DEBUG,  # one that died has failed its job, which is told
    "child_started": logging.INFO,
    "child_restarted": logging.INFO,
    "child_died": logging.WARNING,
    "child_rescued": logging.INFO,
    "child_retiring": logging.INFO,
    "child_recycled": logging.INFO,
    "worker_recycling": logging.INFO,
    "worker_vouched": logging.WARNING,
    "worker_heard": logging.INFO,
    "queue_not_served": logging.WARNING,
}
_VERDICTS = {
    Verdict.COMPLETED: (logging.DEBUG, "attempt completed"),
    Verdict.SNOOZE: (logging.DEBUG, "attempt snoozed"),
    Verdict.DEAD: (logging.DEBUG, "attempt ended dead"),  # job_dead tells it in full
    Verdict.RETRY: (logging.WARNING, "attempt failed, will be retried"),
    Verdict.CANCELLED: (logging.INFO, "attempt cancelled"),
    Verdict.RELEASE: (logging.INFO, "attempt given back"),
}
# What to do about it, for those who see such a line for the first time.
_HINTS = {
    "handler_stuck": "it does not heed its interruption: its job is settled, its slot stays taken until it ends",
    "loop_blocked": "no other handler moves on and no timeout works meanwhile: await, use a `def` handler, "
    'or executor="process"',
    "worker_vouched": 'it lives but cannot beat: a handler holds the interpreter (give such a task executor="process"), '
    "the machine is overloaded, or the database lets its heartbeat wait",
}
_MAX_LISTED = 10  # ids in one text line
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BARE = re.compile(r"[^\s\"'=\x00-\x1f\x7f-\x9f]+")
_COLOURS = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "1;31", "CRITICAL": "1;31"}


def subscribe(events: Events) -> None:
    """Log these events. Those that happen for every job are left alone unless their level is on."""
    log = EventLog(logging.getLogger(LOGGER))
    events.subscribe(log, *[name for name, level in LEVELS.items() if log.logger.isEnabledFor(level)])


class EventLog:
    """A subscriber that turns events into log records."""

    def __init__(self, logger: logging.Logger) -> None:
        self.logger = logger
        self._worker: int | None = None

    def __call__(self, event: Event) -> None:
        name, fields = event.name, event.fields
        level, title = LEVELS[name], name.replace("_", " ")
        if name in ("attempt_ended", "attempt_failed"):
            if (name == "attempt_ended") != (fields["verdict"] == Verdict.COMPLETED):
                return  # what is not completed is told once, by attempt_failed
            level, title = _VERDICTS.get(fields["verdict"], (logging.INFO, title))
        elif name == "worker_started":
            self._worker = fields["worker"]
        if self.logger.isEnabledFor(level):
            self._write(level, title, name, fields)

    def _wants_trace(self, level: int, fields: Mapping[str, Any]) -> bool:
        """A dead job's always, and where a stuck handler is. What will be tried again is worth one line."""
        if level >= logging.ERROR or "stack" in fields:
            return True
        return level == logging.WARNING and self.logger.isEnabledFor(logging.DEBUG)

    def _write(self, level: int, title: str, name: str, fields: Mapping[str, Any]) -> None:
        told: dict[str, Any] = {"event": name}
        if self._worker is not None:
            told["worker"] = self._worker
        trace = None
        for key, value in fields.items():
            if isinstance(value, Failure | BaseException):
                failure = value if isinstance(value, Failure) else describe(value)
                told["error"] = _one_line(failure)
                trace = failure.traceback
            elif key == "stack":
                trace = value
            elif value is not None:
                told[key] = _simple(value)
        if name in _HINTS:
            told["hint"] = _HINTS[name]
        if not self._wants_trace(level, fields):
            trace = None
        _handle(self.logger, level, title, told, trace)


def failed(error: SkiplockError) -> None:
    """Why there is no worker: for logs that hold nothing but JSON."""
    told = {"event": "failed", "error": str(error)}
    _handle(logging.getLogger(LOGGER), logging.ERROR, "failed", told, getattr(error, "traceback", None))


def _handle(logger: logging.Logger, level: int, title: str, told: Mapping[str, Any], trace: str | None) -> None:
    text = f"{title}  {_as_text(told)}"
    record = logger.makeRecord(LOGGER, level, "", 0, text, (), None, extra={"skiplock": told})
    record.exc_text = trace.rstrip() if trace else None
    logger.handle(record)


def _simple(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    return value.id if isinstance(value, Job) else value


def _one_line(failure: Failure) -> str:
    first = failure.message.strip().split("\n", 1)[0]
    kind = failure.error_class.removeprefix("skiplock.core.errors.")
    return f"{kind}: {first}" if first else kind


def _as_text(fields: Mapping[str, Any]) -> str:
    texts = {**fields, "memory": size_as_text(fields["memory"])} if "memory" in fields else fields
    return " ".join(f"{key}={_value(value)}" for key, value in texts.items() if key != "event")


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}" if value else "0"
    if isinstance(value, Mapping):
        return _value(",".join(f"{key}:{inner}" for key, inner in value.items()))
    if isinstance(value, list | tuple):
        more = f",…({len(value)})" if len(value) > _MAX_LISTED else ""
        return ",".join(str(item) for item in value[:_MAX_LISTED]) + more
    text = str(value)
    return text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False)


# -- how the command line writes them ----------------------------------------------------------------------------------


def install(form: str, level: str, stream: TextIO | None = None) -> None:
    """Write to stderr. The application's own records go there too, unless it has set up logging for itself."""
    out = stream or sys.stderr
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter(colours=_has_colours(out)))
    logger = logging.getLogger(LOGGER)
    logger.setLevel(level.upper())
    logger.handlers = [handler]
    logger.propagate = False
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(handler)


def _has_colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class TextFormatter(logging.Formatter):
    """`2026-12-01 02:44:08.123  INFO     worker started  worker=1 …`, tracebacks below, in local time."""

    def __init__(self, *, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        local = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname:<7}"
        if self._colours:
            level = f"\x1b[{_COLOURS.get(record.levelname, '0')}m{level}\x1b[0m"
        text = record.getMessage()
        if not hasattr(record, "skiplock"):
            text = f"{record.name}: {text}"
        trace = _trace(self, record)
        if trace:
            text += "\n" + "\n".join(f"    {line}" for line in trace.splitlines())
        # What a job's error says must not move the cursor or recolour the terminal.
        safe = _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)
        return f"{local}.{int(record.msecs):03d}  {level}  {safe}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": moment.replace("+00:00", "Z"), "level": record.levelname}
        fields = getattr(record, "skiplock", None)
        if fields is None:
            line |= {"event": "log", "logger": record.name, "message": record.getMessage()}
        else:
            line |= fields
        line["pid"] = fields["pid"] if fields and "pid" in fields else record.process
        trace = _trace(self, record)
        if trace:
            line["traceback"] = trace
        return json.dumps(line, default=str)


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    if record.exc_text is None and record.exc_info:
        record.exc_text = formatter.formatException(record.exc_info)
    return record.exc_text
