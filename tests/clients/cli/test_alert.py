"""`tocsin queue alert`: what it does not even send."""

import pytest
from click.testing import CliRunner
from tocsin.cli import main as command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("orders", "late"), "Give at least one option"),
        (("orders", "--remove"), "Give the alert's name"),
        (("orders", "late", "--remove", "--when", "lag"), "--remove goes with no other"),
        (("orders", "late", "--when", "mood"), "'mood' is not one of"),
    ],
)
def test_what_is_no_alert_is_said_before_it_is_asked_for(
    arguments: tuple[str, ...], said: str
) -> None:
    ended = CliRunner().invoke(command.cli, ["queue", "alert", *arguments])
    assert ended.exit_code == 2
    assert said in ended.output
