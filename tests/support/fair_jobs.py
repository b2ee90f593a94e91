"""The app of the fairness test: jobs of tenants that take ten milliseconds each."""

from __future__ import annotations

import asyncio

from skiplock import Skiplock

app = Skiplock()


@app.task(name="serve", fair_key="{tenant}")
async def serve(tenant: str) -> None:
    await asyncio.sleep(0.01)
