"""A ledger in SQLite that books each message once, though messages may come twice.

    tocsin queue create payments
    python effectively_once_sqlite.py ledger.sqlite &
    python effectively_once_sqlite.py ledger.sqlite &
    tocsin publish payments '{"account": "alice", "amount": 12}' --key alice

Kill any of it with -9 whenever you like, and start it again. In the end each payment is in
`bookings` once, and `accounts` has the sums. A booking and its record are one transaction.
"""

import asyncio
import sqlite3
import sys
from contextlib import closing

import tocsin
from tocsin.effects import SqliteEffects

QUEUE, GROUP = "payments", "ledger"


def create_tables(path: str) -> None:
    """The program's own ones; `SqliteEffects` adds its two."""
    database = sqlite3.connect(path, timeout=30)
    with database:
        database.execute("CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, sum INTEGER)")
        database.execute("CREATE TABLE IF NOT EXISTS bookings (account TEXT, payment TEXT)")
    database.close()


async def main(path: str) -> None:
    """Book until the broker is gone for good, or Ctrl-C."""
    create_tables(path)
    effects = SqliteEffects(path, group=GROUP)

    async def book(message: tocsin.Message) -> None:
        async with effects.once(message) as database:
            if database is None:
                return  # it was booked before, and is acked now
            account, amount = message.body["account"], message.body["amount"]
            database.execute("INSERT INTO bookings VALUES (?, ?)", (account, message.id))
            database.execute(
                "INSERT INTO accounts VALUES (?, ?)"
                " ON CONFLICT (name) DO UPDATE SET sum = sum + excluded.sum",
                (account, amount),
            )

    with closing(effects):
        async with (
            tocsin.connect() as client,
            client.subscribe(QUEUE, GROUP, credit=100) as messages,
        ):
            print("booking", flush=True)
            await messages.run(book, concurrency=8)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
