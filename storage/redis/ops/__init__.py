"""What operators do with a Redis store: examine, observe, provision, fail over."""
