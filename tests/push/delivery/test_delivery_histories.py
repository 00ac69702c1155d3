"""Random histories of a partition that is delivered to sessions, against the naive model (R16–R21,
R24, P3, P5, P6, P8)."""

from tests.push.delivery_machine import PROFILE, DeliveryMachine


class SessionDelivery(DeliveryMachine):
    """See DeliveryMachine."""


TestSessionDelivery = SessionDelivery.TestCase
TestSessionDelivery.settings = PROFILE
