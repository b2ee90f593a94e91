"""When a schedule fires: pure rules. All instants are aware datetimes in UTC; a zone only decides which they are.

Cron expressions are those of Debian's cron as cronsim reads them (five fields, or six with seconds first), in a zone of the IANA
database. When the clocks change:

| the expression                                  | clocks go forward over it                  | clocks go back over it   |
|-------------------------------------------------|--------------------------------------------|--------------------------|
| fixed minute and hour (`30 2 * * *`)            | once, at the first moment after the gap    | once, the first time     |
| minute or hour begins with `*` (`*/15 * * * *`) | the skipped ones do not exist              | every real one, both times |
| with seconds (six fields)                       | as the row above                           | as the row above         |

Source: cron(8) of Debian ("local time changes of less than three hours"), and the readme of cronsim, which follows it; longer
gaps (a day skipped at the date line) are treated alike. cronsim is the parser and knows the calendar; the walk through real time
is ours, because its own drops `fold`, and loses half an hour beyond a change by half an hour (Australia/Lord_Howe).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim

from skiplock.core.errors import OptionError
from skiplock.core.inspect_value import shown
from skiplock.core.outcome import Duration, seconds

SHORTEST = 1.0  # seconds between two fires of an interval
LONGEST = 366 * 86400.0
ALIASES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND, _DAY = timedelta(seconds=1), timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a zone."""

    expression: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        zone_of(self.zone)
        if not isinstance(self.expression, str):
            raise OptionError(f"cron={shown(self.expression)}: give text")
        try:
            found = next(self._calendar(datetime(2000, 1, 1)), None)
        except Exception as error:  # its parser raises whatever it stumbles over
            raise OptionError(
                f"cron {shown(self.expression)}: {str(error) or 'cannot be read'}; give minute, hour, day of month, month and "
                'day of week, as in "30 2 * * 1-5", or six fields with seconds first'
            ) from None
        if found is None:
            raise OptionError(f"cron {shown(self.expression)}: there is no such day, so it would never fire")

    def _calendar(self, local: datetime) -> CronSim:
        """The matching times of a calendar without zones that are later than `local`."""
        return CronSim(ALIASES.get(self.expression.strip().lower(), self.expression), local)

    @property
    def is_fixed(self) -> bool:
        """Whether it names its times of day: such a fire is neither lost nor doubled when the clocks change."""
        fields = ALIASES.get(self.expression.strip().lower(), self.expression).split()
        return len(fields) == 5 and not fields[0].startswith("*") and not fields[1].startswith("*")

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The fires later than `moment`, in order."""
        zone = zone_of(self.zone)
        return self._fixed(zone, moment) if self.is_fixed else self._real(zone, moment)

    def _fixed(self, zone: ZoneInfo, moment: datetime) -> Iterator[datetime]:
        latest = moment
        for local in self._calendar(moment.astimezone(zone).replace(tzinfo=None)):
            fire = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
            if fire.astimezone(zone).replace(tzinfo=None) != local:  # skipped by the clocks
                before = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
                fire = _first_change(zone, before, fire) or fire
            # The second of two equal hours has no fires of its own, and those of a gap are one.
            if fire > latest:
                latest = fire
                yield fire

    def _real(self, zone: ZoneInfo, moment: datetime) -> Iterator[datetime]:
        """From one change of the clocks to the next, for within them local time is a plain calendar."""
        at, back = moment, timedelta(0)
        while True:
            here = at.astimezone(zone)
            ahead = here.utcoffset() or timedelta(0)
            change: datetime | None = None
            for local in self._calendar(here.replace(tzinfo=None) - back):
                fire = (local - ahead).replace(tzinfo=UTC)
                change = _first_change(zone, at, min(fire, at + 2 * _DAY))
                if change is not None:
                    break
                if fire > at + 2 * _DAY:
                    # Nothing matches until then whatever the clocks do, for they do not go back by a day.
                    change = (local - _DAY).replace(tzinfo=zone).astimezone(UTC)
                    break
                yield fire
                at = fire
            if change is None:
                return
            at, back = change, _SECOND  # its first moment may match too

    def words(self) -> str:
        """The expression in English."""
        told: str = self._calendar(datetime(2000, 1, 1)).explain()
        return f"{told} ({self.zone})"


def _first_change(zone: ZoneInfo, after: datetime, until: datetime) -> datetime | None:
    """The first moment in (after, until] at which the zone has another offset than at `after`; to the second."""
    low, last = math.floor(after.timestamp()), math.floor(until.timestamp())
    offset = _offset(zone, low)
    while low < last:
        high = min(low + 6 * 3600, last)
        if _offset(zone, high) != offset:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _offset(zone, middle) == offset else (low, middle)
            return datetime.fromtimestamp(high, UTC)
        low = high
    return None


def _offset(zone: ZoneInfo, second: int) -> timedelta | None:
    return datetime.fromtimestamp(second, zone).utcoffset()


@dataclass(frozen=True, slots=True)
class Every:
    """A fixed interval, counted from `anchor` (UTC, default 1970-01-01), so that every process finds the same fires."""

    interval: float  # seconds
    anchor: datetime = _EPOCH

    def __post_init__(self) -> None:
        if not SHORTEST <= self.interval <= LONGEST:
            raise OptionError(f"every={self.interval!r}: must be from 1 second to 366 days")

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The fires later than `moment`, in order."""
        step = timedelta(seconds=self.interval)
        nth = max(0, (moment - self.anchor) // step + 1)
        while True:
            yield self.anchor + nth * step
            nth += 1

    def words(self) -> str:
        """The interval in English."""
        counted = "" if self.anchor == _EPOCH else f", counted from {self.anchor:%Y-%m-%d %H:%M:%S} UTC"
        return f"Every {_spell(self.interval)}{counted}"


Rule = Cron | Every


def every(interval: Duration, anchor: datetime | None = None) -> Every:
    """An interval in seconds, as a timedelta, or as text like "10m". Raises OptionError."""
    return Every(seconds(interval, "every"), _EPOCH if anchor is None else anchor)


def zone_of(name: str) -> ZoneInfo:
    """The IANA zone. Raises OptionError naming it."""
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError, TypeError, AttributeError):
        raise OptionError(
            f'time zone {shown(name)}: not in the IANA database; give a name like "Europe/Berlin" or "UTC" '
            "(pip install tzdata, if this system has no zones at all)"
        ) from None


@dataclass(frozen=True, slots=True)
class Window:
    """When a schedule is in force: from `start` on and until before `end`; None: always."""

    start: datetime | None = None
    end: datetime | None = None


def fires(rule: Rule, window: Window, after: datetime) -> Iterator[datetime]:
    """The fires later than `after` and within the window, in order."""
    first = after if window.start is None else max(after, window.start - timedelta(microseconds=1))
    try:
        for fire in rule.after(first):
            if window.end is not None and fire >= window.end:
                return
            yield fire
    except (OverflowError, ValueError):  # beyond the year 9999
        return


def next_fire(rule: Rule, window: Window, after: datetime) -> datetime | None:
    """The first of them; None: never again."""
    return next(fires(rule, window, after), None)


# What to do about fires that nobody was there for.
NONE, LATEST, ALL = "none", "latest", "all"
MISSED = (NONE, LATEST, ALL)
ON_TIME = (
    60.0  # seconds after which a fire counts as missed: longer than any leader needs to notice that the last is gone
)
MOST = 100  # missed fires made up for at once, at most
# What to do about a fire while the job of the last one has not ended.
ALLOW, SKIP, QUEUE, CANCEL = "allow", "skip", "queue", "cancel"
OVERLAP = (ALLOW, SKIP, QUEUE, CANCEL)


@dataclass(frozen=True, slots=True)
class Due:
    """What a schedule owes now: fires to make, oldest first; how many were passed over (at least); and the next one."""

    fires: tuple[datetime, ...]
    passed_over: int
    next: datetime | None


def due(rule: Rule, window: Window, since: datetime, now: datetime, *, missed: str = LATEST, most: int = MOST) -> Due:
    """The fires in (since, now] under the policy for missed ones.

    `none`: only those of the last minute. `latest`: the newest one, however late. `all`: the newest `most`. They are counted
    up to 200: what was missed for months must not keep the heart from beating.
    """
    owed: list[datetime] = []
    coming: datetime | None = None
    for fire in islice(fires(rule, window, since), 2 * MOST):
        if fire > now:
            coming = fire
            break
        owed.append(fire)
    count = len(owed)
    if count == 2 * MOST:
        owed, coming = _newest(rule, window, since, now), next_fire(rule, window, now)
    chosen = _chosen(owed[-most:], now, missed)
    return Due(chosen, count - len(chosen), coming)


def _newest(rule: Rule, window: Window, since: datetime, now: datetime) -> list[datetime]:
    """The last MOST fires until now, looked for in steps back that grow."""
    back = timedelta(seconds=MOST)
    while True:
        start, found = max(since, now - back), []
        for fire in fires(rule, window, start):
            if fire > now:
                break
            found.append(fire)
        if len(found) >= MOST or start == since:
            return found[-MOST:]
        back *= 4


def _chosen(owed: list[datetime], now: datetime, missed: str) -> tuple[datetime, ...]:
    if missed == ALL:
        return tuple(owed)
    if missed == LATEST:
        return tuple(owed[-1:])
    return tuple(fire for fire in owed if (now - fire).total_seconds() <= ON_TIME)


def run_at(name: str, fire: datetime, jitter: float) -> datetime:
    """When the job of a fire may run: up to `jitter` seconds later, the same in every process that is asked."""
    if jitter <= 0:
        return fire
    drawn = hashlib.sha256(f"{name}\n{fire.isoformat()}".encode()).digest()
    return fire + timedelta(seconds=jitter * int.from_bytes(drawn[:6], "big") / 2**48)


_UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def _spell(total: float) -> str:
    if total != int(total):
        return f"{total:g} seconds"
    left = int(total)
    parts: list[str] = []
    for size, name in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {name}s" if count > 1 else name if not parts and left == 0 else f"1 {name}")
    return " ".join(parts)
