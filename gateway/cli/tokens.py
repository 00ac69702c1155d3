"""`tocsin admin token`: make, list and revoke API tokens."""

import time
from typing import Any

import click
from tocsin.cli.durations import duration
from tocsin.cli.times import local_time

from gateway.admin import client as admin_client
from gateway.cli.options import admin_errors, broker_of, data_dir_option, json_option, to_json
from gateway.limits.spec import limits_of
from metadata.rights import RightsError, parse_right


@click.group()
def token() -> None:
    """Make, list and revoke the tokens that clients present.

    A token has a name, which is who its holder is; rights, which are what the holder may; and an
    end. To rotate one, make a second one of the same name, give it to the client, and revoke the
    first: both are good meanwhile, and both are the same client.
    """


def _lasts_s(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    lasts_s = duration(text)
    if not lasts_s:
        raise click.BadParameter("a token that is over at once lets nobody in")
    return lasts_s


def _rights(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    for text in texts:
        try:
            parse_right(text)
        except RightsError as error:
            raise click.BadParameter(str(error)) from None
    return texts


def _limits(_context: click.Context, _option: click.Parameter, text: str) -> str:
    try:
        limits_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text


@token.command()
@click.argument("name")
@click.option(
    "--right",
    "rights",
    multiple=True,
    required=True,
    callback=_rights,
    metavar="VERBS:QUEUES",
    help="What its holder may: verbs of publish, consume, read and manage, on queues whose name "
    "fits the pattern; publish and read also on keys, as in read:feed:user-7. Repeatable.",
)
@click.option("--tenant", default="default", show_default=True, help="Whose queues.")
@click.option(
    "--expires",
    "lasts_s",
    callback=_lasts_s,
    metavar="TIME",
    help="It ends after so long: 90d, 12h, 30m, 1y. [when it is revoked]",
)
@click.option(
    "--limits",
    default="",
    callback=_limits,
    metavar="LIMITS",
    help="What this token may at most, beside what its principal may: connections, requests, "
    "messages and bytes by time, sessions, in_flight, as in messages=1000/s,sessions=5.",
)
@click.option(
    "--certificate",
    metavar="CN",
    help="Make no token: whoever shows a client certificate of this name is NAME.",
)
@data_dir_option
@json_option
def create(data_dir: str | None, as_json: bool, **wanted: Any) -> None:
    """Make a token for NAME and print it. It is shown this once: the broker keeps only a hash.

    \b
    Examples:
      tocsin admin token create billing --right 'consume:orders' --expires 90d
      tocsin admin token create shop --right 'publish:orders.*' --right 'read:feed:user-7'
      tocsin admin token create trial --right 'publish:trial.*' --limits 'messages=10/s,sessions=2'
      tocsin admin token create meter-7 --right 'publish:readings' --certificate meter-7.example
      TOCSIN_TOKEN=$(tocsin admin token create ci --right 'publish,consume:test.*' --expires 1h)
    """
    with admin_errors():
        answer = admin_client.create_token(broker_of(data_dir), wanted)
    if answer["warning"] is not None:
        click.echo(f"Warning: {answer['warning']}.", err=True)
    if as_json:
        click.echo(to_json(answer))
        return
    # What is not the token goes to stderr: $(…) is the token alone.
    click.echo(f"{_line(answer)}", err=True)
    if answer["token"] is not None:
        click.echo("Keep it now, it is not shown again:", err=True)
        click.echo(answer["token"])


@token.command("list")
@data_dir_option
@json_option
def list_tokens(data_dir: str | None, as_json: bool) -> None:
    """List the tokens: id, name, rights, when they end and when they were used last.

    \b
    Examples:
      tocsin admin token list
      tocsin admin token list --json | jq -r '.tokens[] | select(.name == "ci").token_id'
    """
    with admin_errors():
        answer = admin_client.tokens(broker_of(data_dir))
    if as_json:
        click.echo(to_json(answer))
        return
    for one in answer["tokens"]:
        click.echo(_line(one))
    if not answer["tokens"]:
        click.echo("There are no tokens: tocsin admin token create makes one.")


@token.command()
@click.argument("token_id", metavar="ID")
@data_dir_option
@json_option
def revoke(token_id: str, data_dir: str | None, as_json: bool) -> None:
    """Revoke the token ID: it admits nobody any more, and what it has let in ends within 5 s.

    \b
    Examples:
      tocsin admin token revoke k3v9x2ma
    """
    with admin_errors():
        answer = admin_client.revoke_token(broker_of(data_dir), token_id)
    if as_json:
        click.echo(to_json(answer))
    else:
        click.echo(f"Revoked {answer['token_id']} of {answer['name']}.")


def _line(one: dict[str, Any]) -> str:
    tenant = "" if one["tenant"] == "default" else f" of {one['tenant']}"
    certificate = "" if one["certificate"] is None else f", certificate {one['certificate']}"
    limits = f", at most {one['limits']}" if one["limits"] else ""
    ends = one["expires_unix_ms"]
    end = "until it is revoked" if ends is None else f"until {_time(ends)}"
    if ends is not None and ends <= time.time() * 1000:
        end = f"ended {_time(ends)}"
    used = one["last_used_unix_ms"]
    last = "never used" if used is None else f"last used about {_time(used)}"
    rights = " ".join(one["rights"])
    return f"{one['token_id']}  {one['name']}{tenant}: {rights}{certificate}{limits}, {end}, {last}"


def _time(unix_ms: int) -> str:
    return local_time(unix_ms)
