"""Rules of one group-partition: what is given to which consumer, and what has been settled. Pure.

`push.delivery.delivery.Delivery` is the door; the other modules are its parts.
"""
