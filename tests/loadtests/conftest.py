"""Nothing is shared by these tests; see below for a loop that nobody would close."""

import asyncio

# pytest-asyncio remembers the current loop before an async test. On Python 3.11 asking for it makes
# one when there is none, which nobody closes: a warning, and warnings are errors.
asyncio.set_event_loop(None)
