"""Who a client is: tokens, tickets, cookies, certificates, JWTs."""
