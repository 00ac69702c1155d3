"""Effects that happen once, although messages may come twice.

A handled message comes again when its ack did not arrive, because the consumer or the broker died,
or the lease ended. If the effect of the handler is a transaction in a database, that transaction
can remember the message's place, and recognize it when it comes again:

    effects = SqliteEffects("billing.sqlite", group="billing")

    async def handle(message: tocsin.Message) -> None:
        async with effects.once(message) as database:
            if database is not None:
                database.execute("UPDATE accounts SET balance = balance + ?", [message.body])

    async with client.subscribe("orders", group="billing") as messages:
        await messages.run(handle, concurrency=8)

`SqliteEffects` does this for SQLite. `Applied` does it for any database that has transactions and
these statements, inside the caller's transactions. `Applied` states what is guaranteed and what is
not.
"""

from tocsin.effects.applied import POSTGRES, SQLITE, Applied, Cursor, Dialect
from tocsin.effects.sqlite import EffectStore, Once, SqliteEffects

__all__ = [
    "POSTGRES",
    "SQLITE",
    "Applied",
    "Cursor",
    "Dialect",
    "EffectStore",
    "Once",
    "SqliteEffects",
]
