"""What the types of a delivery list (gateway.wire.frames) do not say. Pure."""

from push import limits
from push.errors import Refused


def check_deliveries(deliveries: list[list[int]]) -> None:
    """What the types of a delivery list do not say.

    Raises:
        Refused: invalid_request: a range without an end, one that ends before it begins, or more
            ranges than one frame may name.
    """
    ranges = 0
    for delivery in deliveries:
        if len(delivery) % 2 == 0:
            raise Refused(
                "invalid_request",
                "a delivery is [partition, epoch, push, first, last, …]: the last range has no end",
            )
        for index in range(3, len(delivery), 2):
            if delivery[index] > delivery[index + 1]:
                raise Refused(
                    "invalid_request",
                    f"a range ends before it begins: {delivery[index]}..{delivery[index + 1]}",
                )
        ranges += (len(delivery) - 3) // 2
    if ranges > limits.RANGES_PER_FRAME_MAX:
        raise Refused(
            "invalid_request", f"at most {limits.RANGES_PER_FRAME_MAX} ranges in one frame"
        )
