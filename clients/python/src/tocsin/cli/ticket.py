"""The verb `tocsin ticket`, which prints an address that lets a browser in."""

import click

from tocsin.cli.common import Target, json_option, pass_target, run, target_options, to_json


@click.command("ticket")
@click.option(
    "--page",
    type=click.Choice(["console", "demo"]),
    default="console",
    show_default=True,
    help="Which page.",
)
@json_option
@target_options
@pass_target
def ticket(target: Target, page: str, as_json: bool) -> None:
    """Print an address that opens a page of the broker in a browser.

    It is good once, and for 30 seconds: open it at once. The browser is then let in for twelve
    hours, and the token does not leave this machine. A broker without a token needs no ticket: the
    address is that of the page.

    \b
    Examples:
      tocsin ticket                      the console
      tocsin ticket --page demo
      xdg-open "$(tocsin ticket)"        in this machine's browser, at once
    """

    async def work() -> tuple[str, str | None]:
        async with target.http() as http:
            return http.url, await http.ticket()

    url, text = run(work())
    address = f"{url}/{page}" if text is None else f"{url}/{page}#ticket={text}"
    if as_json:
        click.echo(to_json({"url": address, "ticket": text}))
        return
    click.echo(address)
    if text is not None:
        click.echo("Good once, and for 30 seconds.", err=True)
