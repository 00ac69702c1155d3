"""Authentication: tokens, tickets, cookies, certificates, JWTs."""
