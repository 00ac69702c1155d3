"""From the delivery log to figures: why was a message late, and were the promises kept?

Gateways write what they did with every message as JSON lines (PROTOCOL.md, "Delivery log"). This
package reads finished files, never the broker: it imports no server package, and the broker runs
without it. `ingest` brings lines into a **lake** of Parquet files, `rollup`, `usage` and
`order_audit` make tables of them, `report` a page. Each of these is a job around transforms that
take DataFrames and return DataFrames and touch nothing else.

Importing this package needs neither PySpark nor Java; running a job needs PySpark 4.1.2 or newer,
whose sketches can be merged, and Java 17 or newer.
"""
