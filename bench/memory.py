"""How much a process grows over one long stream: `python -m bench.memory CONTESTANT URL EVENTS`."""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from pathlib import Path

import anyio

from bench.contestants import clock, contestants, host_on

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


async def grow(name: str, url: str, n: int) -> dict[str, float]:
    """Growth is counted from the first tenth on: by then windows are full and the allocator has settled."""
    samples = []
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        contestant = contestants(Path(directory), [name])[name]
        async with host_on(contestant, url) as host:
            request = host.prepare_call("stream", n=n, size=100, prefix="m", prepare=False)
            step = max(1, n // 10)
            start = clock()
            await host.send(request)
            for taken in range(1, n + 1):
                await host.take()
                if taken % step == 0:
                    gc.collect()
                    samples.append(resident())
            await host.response_to(request)
            wall = clock() - start
    return {
        "events": n,
        "after_warm_up_mb": samples[0] / 1e6,
        "growth_mb": (samples[-1] - samples[0]) / 1e6,
        "peak_growth_mb": (max(samples) - samples[0]) / 1e6,
        "events_per_s": n / wall,
    }


if __name__ == "__main__":
    _, chosen, endpoint, events = sys.argv
    print(json.dumps(anyio.run(grow, chosen, endpoint, int(events))))
