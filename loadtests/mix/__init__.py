"""The mix of `make load`: Locust users with ledgers, what they found, and whether that will do."""
