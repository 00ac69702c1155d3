"""`tocsin admin token`, which makes, lists and revokes API tokens."""

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

    A token has the name of the client that holds it, the client's rights, and perhaps an end. To
    rotate a token, make a second one with the same name, give it to the client, and revoke the
    first. Until then both are good, for the same client.
    """


def _lasts_s(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    lasts_s = duration(text)
    if not lasts_s:
        raise click.BadParameter("must be longer than 0, for example 90d")
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
    help="A right of its holder: one or more of publish, consume, read, manage and observe, on "
    "queues whose name matches the pattern. publish and read can be limited to keys, as in "
    "read:feed:user-7. observe shows figures only. Repeatable.",
)
@click.option("--tenant", default="default", show_default=True, help="The tenant of the queues.")
@click.option(
    "--expires",
    "lasts_s",
    callback=_lasts_s,
    metavar="TIME",
    help="Time after which it ends: 90d, 12h, 30m, 1y. [when it is revoked]",
)
@click.option(
    "--limits",
    default="",
    callback=_limits,
    metavar="LIMITS",
    help="Limits of this token, in addition to those of its principal: connections, requests, "
    "messages and bytes by time, sessions, in_flight. Example: messages=1000/s,sessions=5.",
)
@click.option(
    "--certificate",
    metavar="CN",
    help="Make no token. A client with a TLS certificate of this name is NAME.",
)
@data_dir_option
@json_option
def create(data_dir: str | None, as_json: bool, **wanted: Any) -> None:
    """Make a token for NAME and print it.

    It is shown only once, because the broker keeps only a hash of it.

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
    # Everything but the token goes to stderr, so that $(…) is the token alone.
    click.echo(f"{_line(answer)}", err=True)
    if answer["token"] is not None:
        click.echo("Keep this token now. It is not shown again:", err=True)
        click.echo(answer["token"])


@token.command("list")
@data_dir_option
@json_option
def list_tokens(data_dir: str | None, as_json: bool) -> None:
    """List the tokens: id, name, rights, end and last use.

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
        click.echo("There are no tokens. Make one with `tocsin admin token create`.")


@token.command()
@click.argument("token_id", metavar="ID")
@data_dir_option
@json_option
def revoke(token_id: str, data_dir: str | None, as_json: bool) -> None:
    """Revoke the token ID.

    It lets in no client any more, and its sessions end within 5 s.

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
