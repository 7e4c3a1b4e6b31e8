"""The table: medians, ratios guard/SDK taken within each round, and the targets of the design (§10)."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from attrs import frozen


@frozen
class Row:
    measure: str
    number: str
    unit: str
    bound: Callable[[float, float], bool] | None = None
    memory: float | None = None
    """Target of the ratio with the memory store, at most or at least, as `bound` says."""
    sqlite: float | None = None


def at_most(ratio: float, target: float) -> bool:
    return ratio <= target


def at_least(ratio: float, target: float) -> bool:
    return ratio >= target


def rows(major: int, generation: str) -> list[Row]:
    if generation != "streamable-http":
        return [
            Row("events 100 B", "events_per_s", "/s", at_least, memory=1.0, sqlite=1.0),
            Row("events 100 B", "cpu_us_per_event", "µs CPU/event"),
            Row("events 10 kB", "events_per_s", "/s", at_least, memory=1.0, sqlite=1.0),
            Row("events 10 kB", "cpu_us_per_event", "µs CPU/event"),
            Row("call, SSE answer", "p50_ms", "ms p50", at_most, memory=1.0, sqlite=1.0),
            Row("call, SSE answer", "cpu_ms_per_call", "ms CPU/call"),
            Row("500 calls at once", "total_ms", "ms", at_most, memory=1.0, sqlite=1.0),
            Row("500 calls at once", "cpu_ms", "ms CPU"),
        ]
    table = []
    for size in ("100 B", "10 kB"):
        table.append(Row(f"events {size}", "events_per_s", "/s", at_least, sqlite=4.0))
        table.append(Row(f"events {size}", "cpu_us_per_event", "µs CPU/event"))
        table.append(Row(f"events {size}, ClientSession", "events_per_s", "/s", at_least, sqlite=1.5))
        table.append(Row(f"events {size}, ClientSession", "cpu_us_per_event", "µs CPU/event"))
    sse = 0.6 if major == 1 else 0.7
    return [
        *table,
        Row("call, SSE answer", "p50_ms", "ms p50", at_most, memory=sse, sqlite=0.9),
        Row("call, SSE answer", "p99_ms", "ms p99"),
        Row("call, SSE answer", "cpu_ms_per_call", "ms CPU/call"),
        Row("call, JSON answer", "p50_ms", "ms p50", at_most, memory=1.0, sqlite=1.4),
        Row("call, JSON answer", "p99_ms", "ms p99"),
        Row("call, JSON answer", "cpu_ms_per_call", "ms CPU/call"),
        Row("resume", "beyond_retry_ms", "ms beyond retry"),
        Row("resume", "asked_beyond_retry_ms", "ms of it until asked"),
        Row("resume", "served_ms", "ms of it from there"),
        Row("resume, 50 ms away", "round_trips", "round trips of it"),
        Row("500 calls at once", "total_ms", "ms"),
        Row("500 calls at once", "cpu_ms", "ms CPU"),
    ]


def report(outcome: dict[str, Any]) -> str:
    about = outcome["about"]
    bare = outcome["httpx_alone"]
    lines = [
        "{generation}, mcp {mcp}, Python {python}, {cores} cores".format(**about),
        "load {load:.1f}, {rounds} rounds, scale {scale:g}".format(**about),
        "Medians of the rounds; x: guard/SDK within a round, median (lowest to highest).",
        "",
        f"{'':28} {'':22} {'SDK':>9} {'memory':>9} {'x':>21} {'SQLite':>9} {'x':>21}  target",
    ]
    for row in rows(about["major"], about["generation"]):
        if row.measure in outcome["rounds"]:
            lines.append(line(row, outcome["rounds"][row.measure]))
    lines += [
        "",
        f"httpx, httpx-sse and json alone: {bare['events_per_s 100']:,.0f} events/s of 100 B, "
        f"{bare['events_per_s 10000']:,.0f} of 10 kB; {bare['call_p50_ms']:.2f} ms for a JSON call",
    ]
    lines += resume_lines(outcome)
    lines += [
        f"memory of {name} over {grown['events'] / 1e6:g} million events: {grown['after_warm_up_mb']:.1f} MB "
        f"after a tenth, then {grown['growth_mb']:+.1f} MB (peak {grown['peak_growth_mb']:+.1f})"
        for name, grown in outcome["memory"].items()
    ]
    return "\n".join(lines)


def line(row: Row, by_contestant: dict[str, list[dict[str, float]]]) -> str:
    values = {name: [numbers[row.number] for numbers in rounds] for name, rounds in by_contestant.items()}
    cells = [cell(values.get("sdk"))]
    verdicts = []
    for name, target in (("memory", row.memory), ("sqlite", row.sqlite)):
        ratios = [ours / theirs for ours, theirs in zip(values.get(name, []), values.get("sdk", []), strict=False)]
        cells += [cell(values.get(name)), spread(ratios)]
        if target is not None and ratios and row.bound is not None:
            sign = "≤" if row.bound is at_most else "≥"
            met = "met" if row.bound(statistics.median(ratios), target) else "MISSED"
            verdicts.append(f"{name} {sign} {target:g} {met}")
    return f"{row.measure:28} {row.unit:22} " + " ".join(cells) + "  " + ", ".join(verdicts)


def cell(values: list[float] | None) -> str:
    if not values:
        return f"{'-':>9}"
    median = statistics.median(values)
    return f"{median:>9,.0f}" if median >= 1000 else f"{median:>9.2f}"


def spread(ratios: list[float]) -> str:
    if not ratios:
        return f"{'-':>21}"
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})".rjust(21)


def resume_lines(outcome: dict[str, Any]) -> list[str]:
    """The target is two round trips from the cut to the witness, beyond the `retry:` wait."""
    lines = []
    for name, rounds in outcome["rounds"].get("resume, 50 ms away", {}).items():
        trips = statistics.median(numbers["round_trips"] for numbers in rounds)
        lines.append(f"resume of {name}, 50 ms away: {trips:.1f} round trips beyond retry (target 2)")
    return lines
