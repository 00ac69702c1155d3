"""The Spark session of the jobs, and what has to be installed for one."""

import atexit
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYSPARK_FIRST: Final = (4, 1, 2)
"""`kll_merge_agg_bigint`, which makes days of hours, came with it; the other kll_sketch_*
functions with 4.1.0."""
JAVA_FIRST: Final = 17

SETTINGS: Final = {
    # Dates and hours are those of UTC, wherever a job runs.
    "spark.sql.session.timeZone": "UTC",
    # Retention may remove a file of the log before it was opened: the audit says which are missing.
    "spark.sql.files.ignoreMissingFiles": "true",
    # Beyond so many groups sketches are made of sorted rows, which means sorting every message.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "4096",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}
"""What the jobs rely on: it goes before what spark-submit was told."""
QUIET: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
"""Besides, where nobody was asked for it."""
LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "8",
}
"""Besides, where driver and workers are one process."""


LOGGING: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.python.name = org.apache.spark.api.python.PythonGatewayServer
logger.python.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
"""Of a Spark of our own: errors alone, also before a session is there that could be told so.

Source: https://logging.apache.org/log4j/2.x/manual/configuration.html
"""


class NotInstalled(Exception):
    """A sentence that says what to install."""


def check_installed() -> None:
    """Raises NotInstalled: PySpark or Java is missing, or too old."""
    wanted = ".".join(map(str, PYSPARK_FIRST))
    how = f"install it with: pip install 'pyspark>={wanted},<4.4'"
    if importlib.util.find_spec("pyspark") is None:
        raise NotInstalled(f"PySpark is not installed; {how}")
    found = importlib.metadata.version("pyspark")
    if tuple(map(int, re.findall(r"\d+", found)[:3])) < PYSPARK_FIRST:
        raise NotInstalled(f"PySpark {found} is too old: {wanted} or newer is needed; {how}")
    version = java_version()
    if version is None or version < JAVA_FIRST:
        have = "there is none" if version is None else f"this is Java {version}"
        raise NotInstalled(
            f"Spark needs Java {JAVA_FIRST} or newer, and {have} (Debian, Ubuntu: "
            "apt install default-jre-headless; elsewhere set JAVA_HOME)"
        )


def java_version() -> int | None:
    """The major version of the Java that Spark would run on; None: there is none."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin/java") if home else shutil.which("java")
    if program is None:
        return None
    try:
        said = subprocess.run(
            [program, "-version"], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return None if match is None else int(match[1])


def open_session(
    name: str, *, master: str | None = None, more: dict[str, str] | None = None
) -> "SparkSession":
    """A session for jobs. `master` None: the one that spark-submit was told, else all cores of this
    machine. `more` has settings that go before those here.

    Raises:
        NotInstalled: PySpark or Java is missing, or too old.
    """
    check_installed()
    from pyspark.sql import SparkSession

    is_submitted = master is None and "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName(name)
    settings = dict(SETTINGS)
    if not is_submitted:
        where = master or "local[*]"
        builder = builder.master(where)
        settings |= QUIET
        if where.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # it says so, where it looks
            settings |= LOCAL | {"spark.driver.extraJavaOptions": _logging()}
    for key, value in (settings | (more or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if master is not None and not master.startswith("local"):
        spark.sparkContext.addPyFile(_archive())
    return spark


def _logging() -> str:
    """What has Java log as LOGGING says."""
    folder = Path(tempfile.mkdtemp(prefix="tocsin-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "log4j2.properties"
    path.write_text(LOGGING)
    return f"-Dlog4j2.configurationFile={path.as_uri()}"


def _archive() -> str:
    """This package as a file that workers elsewhere can import."""
    package = Path(__file__).resolve().parent
    folder = tempfile.mkdtemp(prefix="tocsin-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return shutil.make_archive(f"{folder}/spark", "zip", package.parent, package.name)
