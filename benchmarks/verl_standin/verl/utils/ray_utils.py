"""What ``rollout_trace`` asks of verl's module of this name."""

import asyncio


def get_event_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
