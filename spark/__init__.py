"""Figures from the delivery log: why a message was late, and whether the promises were kept.

Gateways write what they did with every message as JSON lines (docs/operations/delivery-log.md).
This package reads finished files, never the broker. It imports no server package, and the broker
runs without it. `ingest` brings lines into a **lake** of Parquet files. `rollup`, `usage` and
`order_audit` make tables of them, `report` a page. Each of these is a job around transforms that
take DataFrames, return DataFrames, and touch nothing else.

Importing this package needs neither PySpark nor Java. Running a job needs PySpark 4.1.2 or newer,
whose sketches can be merged, and Java 17 or newer.
"""
