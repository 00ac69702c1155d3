"""The mix of `make load`: Locust users with ledgers, their findings, and the verdict on them."""
