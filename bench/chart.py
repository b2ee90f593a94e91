"""Charts of results as SVG: `python -m bench.chart RESULTS.json … --out docs/assets`.

Written by hand, with nothing to install. Colours follow the reader's light or dark theme. Of several files, a later one
replaces what an earlier one says about the same workload.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from bench.figures import FREE, REFERENCE, SKIPLOCK, STAYING, Results, median, values

WIDTH = 760
LEFT, RIGHT = 190, 96  # room for labels and values
TOP, BAR, GAP = 78, 20, 8
GROUP = 30  # above each group of bars
FOOT = 44
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #24292f }
.title { font-size: 17px; font-weight: 600 }
.quiet { font-size: 11.5px; fill: #656d76 }
.head { font-weight: 600 }
.bar { fill: #b6c2cf } .ours { fill: #1f7a5c } .ref { fill: #d9dee4 }
.grid { stroke: #d8dee4; stroke-width: 1 }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round }
.l0 { stroke: #1f7a5c } .l1 { stroke: #6ab29a } .l2 { stroke: #8c959f } .l3 { stroke: #cf8a3a }
.bold { font-weight: 700 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .quiet { fill: #9198a1 }
  .bar { fill: #4b5563 } .ours { fill: #3fb68b } .ref { fill: #343b44 }
  .grid { stroke: #30363d }
  .l0 { stroke: #3fb68b } .l1 { stroke: #2b7d60 } .l2 { stroke: #7d8590 } .l3 { stroke: #d29a52 }
}"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, with the text at its end."""

    label: str
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Group:
    """Bars under one heading, on one scale."""

    heading: str
    bars: Sequence[Bar]


# -- what to draw ------------------------------------------------------------------------------------------------------


def throughput(results: Mapping[str, Results]) -> list[Group]:
    """W3 and W3x2, best first."""
    heads = {"W3": "one worker process", "W3x2": "two worker processes"}
    return [
        Group(heads[name], _ordered(results[name], "jobs_s", "{:,.0f}/s", best_is_most=True))
        for name in heads
        if name in results
    ]


def latency(results: Mapping[str, Results]) -> list[Group]:
    """W4, best first."""
    heads = {"p50": "median", "p99": "slowest hundredth (p99)"}
    found = results.get("W4", {})
    return [Group(head, _ordered(found, key, "{:,.1f} ms", best_is_most=False)) for key, head in heads.items() if found]


def _ordered(found: Results, key: str, form: str, *, best_is_most: bool) -> list[Bar]:
    pairs = [(label, median(figures, key)) for label, figures in found.items()]
    bars = [Bar(label, value, form.format(value)) for label, value in pairs if value is not None]
    return sorted(bars, key=lambda bar: bar.value, reverse=best_is_most)


def surroundings(facts: Mapping[str, Any]) -> str:
    """The line at the foot."""
    return (
        f"PostgreSQL {facts.get('server_version', '?')}, fsync {facts.get('fsync', '?')}, "
        f"{facts.get('commits_s', '?')} single commits/s, {facts.get('cores', '?')} cores"
        + (f", {str(facts['at'])[:10]}" if "at" in facts else "")
        + ". Jobs are no-ops. Measured with: make bench"
    )


# -- drawing -----------------------------------------------------------------------------------------------------------


def bars(title: str, subtitle: str, groups: Sequence[Group], foot: str) -> str:
    """Horizontal bars."""
    y, parts = TOP, []
    for group in groups:
        parts.append(_text(LEFT, y, group.heading, "head"))
        y += GROUP - 16
        most = max(bar.value for bar in group.bars) or 1.0
        for bar in group.bars:
            parts += _bar(y, bar, most)
            y += BAR + GAP
        y += GROUP
    return _picture(title, subtitle, parts, y - 16, foot)


def _bar(y: float, bar: Bar, most: float) -> Iterator[str]:
    length = max(2.0, bar.value / most * (WIDTH - LEFT - RIGHT))
    kind = {SKIPLOCK: "ours", REFERENCE: "ref"}.get(bar.label, "bar")
    bold = "bold" if bar.label == SKIPLOCK else ""
    name = "reference loop" if bar.label == REFERENCE else bar.label.replace("_", " ")
    yield _text(LEFT - 12, y + 15, name, bold, "end")
    yield f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" rx="3"/>'
    yield _text(LEFT + length + 8, y + 15, bar.text, bold)


def horizon(found: Results, foot: str) -> str:
    """W6: a line for each of them, over the rounds."""
    names = {SKIPLOCK: "skiplock", STAYING: "skiplock, worker stays up", FREE: "skiplock, no snapshot", REFERENCE: "reference loop"}  # fmt: skip
    lines = {label: _calm(values(found[label], "jobs_s")) for label in names if len(found.get(label, [])) > 1}
    rounds, most = max(map(len, lines.values())), max(max(rates) for rates in lines.values())
    step, height, left, width = _step(most), 260, 64, WIDTH - 64 - 24
    top, bottom = TOP + 22, TOP + 22 + height
    ceiling = step * -(-most // step)
    parts = list(_grid(step, ceiling, left, top, height))
    x = float(left)
    for nth, (label, rates) in enumerate(lines.items()):
        at = [(left + n / (rounds - 1) * width, bottom - rate / ceiling * height) for n, rate in enumerate(rates)]
        points = " ".join(f"{across:.1f},{up:.1f}" for across, up in at)
        parts.append(f'<polyline class="line l{nth}" points="{points}"/>')
        parts.append(f'<line class="line l{nth}" x1="{x:.1f}" y1="{TOP - 4}" x2="{x + 18:.1f}" y2="{TOP - 4}"/>')
        parts.append(_text(x + 24, TOP, names[label]))
        x += 50 + 7.4 * len(names[label])  # about as wide as the text
    parts.append(_text(left, bottom + 18, "round 1", "quiet"))
    parts.append(_text(left + width, bottom + 18, f"round {rounds}", "quiet", "end"))
    subtitle = "jobs/s, round by round, while another session's snapshot keeps every dead row in place"
    return _picture("Beside an old snapshot", subtitle, parts, bottom + 26, foot)


def _calm(rates: Sequence[float]) -> list[float]:
    """Of many rounds, the median of each with its neighbours: a single slow one is the machine's."""
    reach = 2 if len(rates) > 50 else 0
    return [statistics.median(rates[max(0, n - reach) : n + reach + 1]) for n in range(len(rates))]


def _grid(step: float, ceiling: float, left: float, top: float, height: float) -> Iterator[str]:
    for n in range(int(ceiling / step) + 1):
        y = top + height - n * step / ceiling * height
        yield f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{WIDTH - 24}" y2="{y:.1f}"/>'
        yield _text(left - 8, y + 4, f"{n * step:,.0f}", "quiet", "end")


def _step(most: float) -> float:
    """A round number that divides the axis into three to six."""
    power = 10.0 ** (len(str(int(most))) - 1)
    return next(power * share for share in (0.2, 0.5, 1.0, 2.0) if most / (power * share) <= 6)


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    attributes = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(text)}</text>'


def _picture(title: str, subtitle: str, parts: Sequence[str], height: float, foot: str) -> str:
    whole = height + FOOT
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {whole:.0f}" role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}\n</style>",
        _text(24, 28, title, "title"),
        _text(24, 48, subtitle, "quiet"),
        *parts,
        _text(24, whole - 16, foot, "quiet"),
        "</svg>",
    ]
    return "\n".join(body) + "\n"


# -- the command line --------------------------------------------------------------------------------------------------


def pictures(results: Mapping[str, Results], feet: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """File names and contents; what was not measured is left out. `feet`: the line at the foot, by workload."""
    groups = throughput(results)
    if groups:
        foot = feet["W3" if "W3" in feet else "W3x2"]
        yield "throughput.svg", bars("Draining a full queue", "jobs/s, longer is better", groups, foot)
    groups = latency(results)
    if groups:
        subtitle = "from enqueue to the handler's start at 50 jobs/s, shorter is better"
        yield "latency.svg", bars("Waiting for a job to start", subtitle, groups, feet["W4"])
    if len(results.get("W6", {}).get(SKIPLOCK, [])) > 1:
        yield "horizon.svg", horizon(results["W6"], feet["W6"])


def _named(found: Results, facts: Mapping[str, Any]) -> Results:
    """Peers with what they keep their jobs in, where that is not PostgreSQL."""
    stores = {name: peer["store"] for name, peer in facts.get("peers", {}).items()}
    return {label + (" (Redis)" if stores.get(label) == "redis" else ""): figures for label, figures in found.items()}


def main() -> None:
    """Read, draw, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.chart", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", nargs="+", type=Path, help="files that `python -m bench` wrote")
    parser.add_argument("--out", type=Path, default=Path("docs/assets"), help="folder (default docs/assets)")
    given = parser.parse_args()
    results: dict[str, Results] = {}
    feet: dict[str, str] = {}
    for path in given.results:
        run = json.loads(path.read_text())
        for name, found in run["results"].items():
            results[name], feet[name] = _named(found, run["facts"]), surroundings(run["facts"])
    given.out.mkdir(parents=True, exist_ok=True)
    for name, text in pictures(results, feet):
        (given.out / name).write_text(text)
        print(given.out / name)


if __name__ == "__main__":
    main()
