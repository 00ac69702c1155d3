"""What every test needs."""

import asyncio

# pytest-asyncio asks for the current event loop before it sets its own. Asked for the first time,
# asyncio makes one that nobody closes, and whichever test runs when it is collected would fail.
asyncio.set_event_loop(None)
