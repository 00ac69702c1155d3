"""A client with a planted bug does not keep to the transcripts: that is what they are for."""

import shutil
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.javascript.conftest import PACKAGE, replay


class Plant(NamedTuple):
    """In a file of src/, `old` (there once) becomes `new`; this transcript must notice."""

    name: str
    file: str
    old: str
    new: str
    transcript: str


PLANTS: Final = (
    Plant(
        "what is held is not named", "proto/delivery-ledger.js",
        "return [...rows, ...this.acks.unconfirmed()];",
        "return this.acks.unconfirmed();",
        "resume-held",
    ),
    Plant(
        "an ack that was perhaps not heard is forgotten", "proto/ack-ledger.js",
        "this.#resends = [...this.#resends, ...this.#probed, ...this.#unconfirmed];",
        "this.#resends = [];",
        "resume-acked",
    ),
    Plant(
        "handing out is taken for an ack", "proto/delivery-ledger.js",
        "this.acks.markStarted(message);",
        "this.acks.ack(message);",
        "resume-held",
    ),
    Plant(
        "one more is granted than there is room for", "proto/delivery-ledger.js",
        "Math.max(0, this.credit + this.released - this.uncounted)",
        "Math.max(0, this.credit + this.released - this.uncounted + 1)",
        "credit",
    ),
    Plant(
        "an old push is taken for a new one", "proto/delivery-ledger.js",
        "if (epoch < newest[0] || (epoch === newest[0] && push.push <= newest[1])) {",
        "if (epoch < 0) {",
        "stale-pushes",
    ),
    Plant(
        "a nacked key stays open", "proto/delivery-ledger.js",
        "this.#closed.close(message);\n    this.acks.nack(message, how, ticket);",
        "this.acks.nack(message, how, ticket);",
        "nack-closes-its-key",
    ),
    Plant(
        "a lease ends here when it ends at the broker", "proto/leases.js",
        "return leaseMs - Math.min(MARGIN_MS_MAX, MARGIN_SHARE * leaseMs);",
        "return leaseMs;",
        "lease-over",
    ),
    Plant(
        "the session's name is not said again", "io/session.js",
        "session: this.sessionId || undefined,",
        "session: undefined,",
        "resume-held",
    ),
    Plant(
        "the WebSocket is never tried again", "io/connector.js",
        "this.#scheduleReturn(carrier);",
        "this.#returnTimer.cancel();",
        "transport-to-websocket",
    ),
)  # fmt: skip


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_planted_bug_is_noticed(plant: Plant, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE / "src", tmp_path / "src")
    shutil.copy(PACKAGE / "package.json", tmp_path)
    path = tmp_path / "src" / plant.file
    text = path.read_text()
    assert text.count(plant.old) == 1, "it does not apply any more"
    path.write_text(text.replace(plant.old, plant.new))
    results = replay("--client", tmp_path / "src/index.js", names=[plant.transcript])
    assert results
    assert [one["transport"] for one in results if one["why"] is None] == []
