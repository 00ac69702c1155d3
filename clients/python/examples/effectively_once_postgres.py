"""A ledger in PostgreSQL that books each message once, though messages may come twice.

    pip install ./clients/python 'psycopg[binary]>=3.1'
    python clients/python/examples/effectively_once_postgres.py postgresql:///ledger

The same two tables and statements as with SQLite, in transactions of your own; here without an
event loop. Start it as often as you like: PostgreSQL lets the transactions of different messages
run at the same time, and makes the second one for the same message wait for the first.
"""

import sys

import psycopg
import tocsin.blocking
from tocsin.effects import POSTGRES, Applied

QUEUE, GROUP = "payments", "ledger"


def main(dsn: str) -> None:
    """Book until the broker is gone for good, or Ctrl-C."""
    applied = Applied(GROUP, POSTGRES)
    with (
        psycopg.connect(dsn, autocommit=True) as database,
        tocsin.blocking.connect() as client,
        client.subscribe(QUEUE, GROUP, credit=100) as messages,
    ):
        with database.transaction(), database.cursor() as cursor:
            applied.create(cursor)
            cursor.execute(
                "CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, sum BIGINT)"
            )
            cursor.execute("CREATE TABLE IF NOT EXISTS bookings (account TEXT, payment TEXT)")
        print("booking", flush=True)
        for message in messages:
            with database.transaction(), database.cursor() as cursor:
                if applied.claim(cursor, message):  # else it was booked before, and is acked now
                    account, amount = message.body["account"], message.body["amount"]
                    cursor.execute("INSERT INTO bookings VALUES (%s, %s)", (account, message.id))
                    cursor.execute(
                        "INSERT INTO accounts VALUES (%s, %s)"
                        " ON CONFLICT (name) DO UPDATE SET sum = accounts.sum + excluded.sum",
                        (account, amount),
                    )
            message.ack()
            for log in applied.due():
                with database.transaction(), database.cursor() as cursor:
                    applied.compact(cursor, log)


if __name__ == "__main__":
    main(sys.argv[1])
