"""Effects that happen once, though messages may come twice.

A message that was handled comes again when its ack did not arrive: the consumer died, the broker
did, the lease ended. If what the handler does is a transaction in a database, that transaction can
remember the message's place, and recognise it when it comes again:

    effects = SqliteEffects("billing.sqlite", group="billing")

    async def handle(message: tocsin.Message) -> None:
        async with effects.once(message) as database:
            if database is not None:
                database.execute("UPDATE accounts SET balance = balance + ?", [message.body])

    async with client.subscribe("orders", group="billing") as messages:
        await messages.run(handle, concurrency=8)

`SqliteEffects` does it for SQLite; `Applied` for any database that has transactions and these
statements, inside transactions of yours. What holds, and what does not, `Applied` says.
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
