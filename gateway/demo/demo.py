"""`tocsin demo`, which starts a broker and sends this machine's live figures through it.

The broker is the one that `tocsin serve` starts, in a process of its own. Everything else here is a
client of it, through the SDK and a socket: a publisher, two workers that share a group, a reader.

The demo publishes to the queue `machine`, about seven times a second, one message for each device.
The key names the device, the body has its figures since the previous look, and `sent_unix_ms` is
the time.

    cpu0, cpu1 …    {"busy_percent": 12.5}
    memory          {"used_percent": 41.2, "used_mib": 3300, "total_mib": 8000}
    disk-vda …      {"read_bytes_per_s": 0, "written_bytes_per_s": 40960}
    net-eth0 …      {"received_bytes_per_s": 1200, "sent_bytes_per_s": 800}
    load            {"m1": 0.5, "m5": 0.4, "m15": 0.3}       the only one without /proc

Every body also has `run` (a text that identifies this run of the demo) and `at_ns` (the process's
monotonic clock, for its own latencies). Other clients may publish any messages to the queue.

The page at /demo is one more client. Its group is `page`, so it receives each message too.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from ssl import SSLContext
from typing import IO, Any, Final

import click
import tocsin
from tocsin.api.http import Http

from gateway.cli.serve import load_config, serve, setting_options
from gateway.config import Config
from gateway.demo.board import (
    Board,
    Device,
    Machine,
    Meter,
    first_line,
    plain_line,
    read_proc,
    table,
)
from gateway.settings import SETTINGS
from runtime.listener import StartError, bind
from runtime.tls import pinning

QUEUE: Final = "machine"
GROUP: Final = "terminal"
WORKERS: Final = ("terminal-1", "terminal-2")
SETTINGS_OF_QUEUE: Final = tocsin.QueueSettings(
    partitions=8, retention_s=60.0, messages_max=100_000, message_ttl_s=600.0
)
"""Settings of the queue. It is small and bounded, so that a demo that is left running fills no
disk. Waiting messages last ten minutes, so that a visitor can think about a parked key."""
LOOK_PERIOD_S: Final = 0.15
DRAW_PERIOD_S: Final = 0.25
LINE_PERIOD_S: Final = 2.0
READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 40.0
TICKET_PERIOD_S: Final = 10.0
"""Interval of new tickets. A ticket is good for 30 s, so the one on the screen is always good for
20 s more."""
DRAIN_S: Final = "5"
_SERVE: Final = "from gateway.demo.demo import serve_while_wanted; serve_while_wanted()"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_OTHER_SCREEN, _OWN_SCREEN = "\x1b[?1049l\x1b[?25h", "\x1b[?1049h\x1b[?25l\x1b[2J"

EXAMPLES: Final = """
\b
Examples:
  tocsin demo                          until Ctrl-C
  tocsin demo --port 0                 on a free port, if 8080 is in use
  tocsin demo --seconds 10 | cat       ten seconds, as plain lines
  tocsin demo --url http://…           on a broker that runs already

\b
While the demo runs, you can use its broker in a second terminal:
  tocsin consume machine --read --keys cpu0
  tocsin queue create orders
"""


@click.command(epilog=EXAMPLES)
@setting_options
@click.option(
    "--seconds", type=click.FloatRange(min=1), help="Stop after this time. [at Ctrl-C or SIGTERM]"
)
@click.option(
    "--url", help="Use the running broker at this address, with TOCSIN_TOKEN, and start none."
)
def demo(seconds: float | None, url: str | None, **flags: Any) -> None:
    """Start the broker and show live messages that flow through it.

    The demo prints an address. Open it in a browser: the page shows the messages, and lets you take
    part.

    The demo publishes figures of this machine (each CPU, memory, disks, networks, load) to the
    queue `machine` about seven times a second, keyed by device. Two workers share them in the group
    `terminal`. All figures of a device go to one worker, in order. A reader watches one device. A
    terminal shows rates, latencies and the worker of each device as a table. Other output gets
    plain lines. If the broker has a token, the address on a terminal contains a ticket, which works
    once.

    The broker and its settings are those of `tocsin serve`, so you can use it meanwhile.
    """
    config = load_config(flags)
    try:
        if url is not None:
            asyncio.run(_demo(url.rstrip("/"), config, None, seconds))
            return
        environ = _environment(config, flags)
        scheme = "http" if config.tls_cert is None else "https"
        url = f"{scheme}://{_reachable(config)}:{environ['TOCSIN_PORT']}"
        with _broker(environ) as broker:
            asyncio.run(_demo(url, config, broker, seconds))
    except (StartError, tocsin.TocsinError) as error:
        raise click.ClickException(str(error)) from None


# --- The broker -----------------------------------------------------------------------------------


def _environment(config: Config, flags: dict[str, Any]) -> dict[str, str]:
    """Return the settings as `serve` reads them, with a port that is free now."""
    environ = dict(os.environ)
    for setting in SETTINGS:
        value = flags.get(setting.field)
        if value is not None:
            environ[setting.variable] = str(value).lower() if setting.is_flag else str(value)
    environ.setdefault("TOCSIN_DRAIN_S", DRAIN_S)
    try:
        with bind(config.host, config.port) as listener:
            environ["TOCSIN_PORT"] = str(listener.getsockname()[1])
    except StartError as error:
        raise click.ClickException(
            f"{error}\nIf a Tocsin broker runs there already, use that one with --url. To run the "
            "demo on another port, use tocsin demo --port 0, or make run ARGS='--port 0'."
        ) from None
    return environ


def _reachable(config: Config) -> str:
    """Return the host under which a client on this machine reaches the broker."""
    if config.host in {"0.0.0.0", "::"}:
        return "127.0.0.1" if config.host == "0.0.0.0" else "[::1]"
    return f"[{config.host}]" if ":" in config.host else config.host


def _trust(config: Config) -> SSLContext | None:
    """Return a TLS context that trusts only the certificate of the broker that we have started,
    under any name; None without TLS."""
    return None if config.tls_cert is None else pinning(config.tls_cert)


@contextmanager
def _broker(environ: dict[str, str]) -> Iterator["_Broker"]:
    with tempfile.TemporaryFile() as log:
        broker = _Broker(environ, log)
        try:
            yield broker
        finally:
            broker.stop()


class _Broker:
    """`tocsin serve` as a child process. The terminal's Ctrl-C does not reach it, because it is
    stopped only when its clients have left."""

    def __init__(self, environ: dict[str, str], log: IO[bytes]) -> None:
        self._log = log
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            process_group=0,
        )

    def check(self) -> None:
        """Raise StartError, with the last output, if the broker has ended."""
        code = self.process.poll()
        if code is not None:
            self._log.seek(0)
            words = self._log.read()[-4000:].decode(errors="replace").strip()
            raise StartError(f"The broker ended with exit code {code}:\n{words}")

    async def wait_ready(self, url: str, tls: SSLContext | None) -> None:
        """Wait until the broker is ready. Raises StartError if the broker ends, or is not ready
        within READY_TIMEOUT_S."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not await asyncio.to_thread(_is_ready, url, tls):
            self.check()
            if time.monotonic() > deadline:
                raise StartError(
                    f"The broker was not ready within {READY_TIMEOUT_S:.0f} s. Start it with "
                    "`tocsin serve` to see its log."
                )
            await asyncio.sleep(0.05)

    def stop(self) -> None:
        """Stop the broker in order, and kill it after STOP_TIMEOUT_S."""
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


def serve_while_wanted() -> None:
    """Run `tocsin serve` until stdin ends, so that a demo that is killed leaves no broker
    behind."""

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait_for_end, daemon=True).start()
    serve()


def _is_ready(url: str, tls: SSLContext | None) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5, context=tls) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


# --- The clients ----------------------------------------------------------------------------------


async def _demo(url: str, config: Config, broker: _Broker | None, seconds: float | None) -> None:
    """Run the demo on the broker at this URL. `broker`: the process that was started for it; None:
    the broker is not ours."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    if broker is not None:
        await broker.wait_ready(url, _trust(config))
    if seconds is not None:
        loop.call_later(seconds, stopping.set)
    machine = Machine()
    machine.look(time.monotonic())
    watched = "cpu0" if read_proc("stat") else "load"
    run = secrets.token_hex(4)  # times of another run cannot be compared with ours
    board = Board(url, time.monotonic(), watched, {name: Meter() for name in WORKERS})
    async with tocsin.connect(url, token=config.token, ssl=_trust(config)) as client:
        await _make_queue(client)
        async with _background(
            _publish(client, board, machine, run),
            *(_work(url, config, board, name, run) for name in WORKERS),
            _read(client, board, run),
            _show(board, broker, config),
            *([_keep_address(url, config, board)] if config.token and _is_screen() else []),
        ) as tasks:
            waiting = asyncio.create_task(stopping.wait())
            await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            for task in tasks:
                if task.done():
                    task.result()
    click.echo(plain_line(board, time.monotonic()))


async def _make_queue(client: tocsin.Client) -> None:
    try:
        await client.create_queue(QUEUE, **SETTINGS_OF_QUEUE)
    except tocsin.Conflict as error:
        raise StartError(
            f"The queue {QUEUE!r} exists already, with other settings ({error}). Use another data "
            "folder for the demo: tocsin demo --data-dir /tmp/tocsin-demo"
        ) from None
    await client.create_group(QUEUE, GROUP, start="latest")


@asynccontextmanager
async def _background(*work: Any) -> AsyncIterator[list["asyncio.Task[None]"]]:
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _publish(client: tocsin.Client, board: Board, machine: Machine, run: str) -> None:
    """Publish all devices at once, so that they travel in one frame, and look again when all are
    durable."""
    while True:
        began = time.monotonic()
        figures = machine.look(began)
        at_ns = time.monotonic_ns()
        sent_unix_ms = time.time_ns() // 1_000_000
        await client.publish_many(
            QUEUE,
            [
                tocsin.NewMessage(
                    {**body, "run": run, "at_ns": at_ns}, key=key, sent_unix_ms=sent_unix_ms
                )
                for key, body in figures.items()
            ],
        )
        now = time.monotonic()
        for _ in figures:
            board.receipts.count(now, now - began)
        await asyncio.sleep(max(0.0, began + LOOK_PERIOD_S - now))


async def _work(url: str, config: Config, board: Board, name: str, run: str) -> None:
    """Run one worker, with a client of its own, as if it were on a machine of its own."""
    async with (
        tocsin.connect(url, token=config.token, name=name, ssl=_trust(config)) as client,
        client.subscribe(QUEUE, group=GROUP) as messages,
    ):
        async for message in messages:
            now = time.monotonic()
            board.owners[message.partition] = (name, now)
            board.redelivered += message.attempt > 1
            sent_s = _sent(message, run)
            if sent_s is None:
                board.others += 1
            else:
                board.workers[name].count(now, now - sent_s)
            if message.key is not None and sent_s is not None:
                figures = {k: v for k, v in message.body.items() if k not in {"run", "at_ns"}}
                board.devices[message.key] = Device(figures, message.partition, name, now)
            await message.ack()


async def _read(client: tocsin.Client, board: Board, run: str) -> None:
    async with client.read(QUEUE, keys=[board.watched], on_gap=lambda _: None) as messages:
        async for message in messages:
            sent_s = _sent(message, run)
            if sent_s is not None:
                now = time.monotonic()
                board.reader.count(now, now - sent_s)


def _sent(message: "tocsin.Message | tocsin.ReadMessage", run: str) -> float | None:
    """Return the time at which this run published a message, in monotonic seconds; None: another
    publisher did."""
    try:
        body = message.body
    except tocsin.UndecodableBody:
        return None
    if not isinstance(body, dict) or body.get("run") != run:
        return None
    at_ns = body.get("at_ns")
    return at_ns / 1e9 if isinstance(at_ns, int) else None


# --- The screen -----------------------------------------------------------------------------------


def _is_screen() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


async def _keep_address(url: str, config: Config, board: Board) -> None:
    """Renew the ticket in the address on the screen, so that it lets a browser in at any moment.
    Plain lines have no ticket, because it would be too old when they are read."""
    async with Http(url, token=config.token, ssl=_trust(config)) as http:
        while True:
            try:
                ticket = await http.ticket()
            except tocsin.CannotConnect:
                ticket = None  # if the broker has ended, `_show` raises
            board.address = f"{url}/demo#ticket={ticket}" if ticket else f"{url}/demo"
            await asyncio.sleep(TICKET_PERIOD_S)


async def _show(board: Board, broker: _Broker | None, config: Config) -> None:
    if not _is_screen():
        click.echo(first_line(board.url, has_token=config.token is not None))
        while True:
            await asyncio.sleep(LINE_PERIOD_S)
            if broker is not None:
                broker.check()
            click.echo(plain_line(board, time.monotonic()))
    sys.stdout.write(_OWN_SCREEN)
    try:
        while True:
            size = shutil.get_terminal_size()
            lines = table(board, time.monotonic(), size.columns, size.lines)
            drawn = "".join(f"{line}{_CLEAR_LINE}\r\n" for line in lines[:-1]) + lines[-1]
            sys.stdout.write(f"{_HOME}{drawn}{_CLEAR_LINE}{_CLEAR_BELOW}")
            sys.stdout.flush()
            await asyncio.sleep(DRAW_PERIOD_S)
            if broker is not None:
                broker.check()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.write(_OTHER_SCREEN)
            sys.stdout.flush()
