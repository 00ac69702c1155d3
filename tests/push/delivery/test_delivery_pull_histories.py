"""Random histories of a partition that is delivered to pulls, against the naive model (R16–R21,
R24, P3, P5, P6, P8)."""

from tests.push.delivery_machine import PROFILE, DeliveryMachine


class PullDelivery(DeliveryMachine):
    """See DeliveryMachine."""

    pulls = True


TestPullDelivery = PullDelivery.TestCase
TestPullDelivery.settings = PROFILE
