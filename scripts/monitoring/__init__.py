"""Dashboards, alert rules, their tests and their runbook, written from tables: see __main__."""
