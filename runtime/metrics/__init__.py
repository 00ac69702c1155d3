"""Metrics: what every process tells a Prometheus that asks for it.

    registry     the table of all metrics: names, kinds, labels, words. Documents, dashboards and
                 alert rules are checked against it
    samples      what one scrape has found; nothing that is not in the table can be put there
    exposition   the text of a scrape, as Prometheus and OpenMetrics write it
    process      what any process has: CPU, memory, and how late its event loop is

Nothing is computed before somebody asks: counters are plain numbers that the work adds to anyway.
"""
