"""Operations on a Redis store: examine, observe, provision, fail over."""
