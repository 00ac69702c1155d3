"""Dashboards, alert rules, their tests and their runbook, written from tables. See __main__."""
