"""The one Spark of these tests. Starting it costs seconds, so all who need it are in one file."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark.session import open_session
from tests.memory import in_memory, tmp_path

__all__ = ["tmp_path"]

FEW = {
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""For small data: what costs here is starting tasks, and compiling what runs once."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A real one, in this process's own JVM."""
    with in_memory() as folder:
        # A third of the time files take. Not java.io.tmpdir: what is loaded from there may have to
        # be executable.
        more = {"spark.local.dir": str(folder)}
        session = open_session("tests", master="local[2]", more=FEW | more)
        yield session
        session.stop()
