"""The Spark session of the jobs, and the software that it needs."""

import atexit
import functools
import importlib.metadata
import importlib.util
import locale
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYSPARK_FIRST: Final = (4, 1, 2)
"""The oldest PySpark that is accepted; pyproject.toml names the same one."""
JAVA_FIRST: Final = 17

SETTINGS: Final = {
    # Dates and hours are those of UTC, wherever a job runs.
    "spark.sql.session.timeZone": "UTC",
    # Retention may remove a file of the log before it was opened; the audit names missing ones.
    "spark.sql.files.ignoreMissingFiles": "true",
    # Beyond this number of groups histograms are made of sorted rows.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "4096",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # Otherwise each Column asks Java four times for its place in Python, which costs seconds.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Hive's catalog would be a database in the folder in which a job is started.
    "spark.sql.catalogImplementation": "in-memory",
}
"""The settings that the jobs rely on. They take precedence over those of spark-submit."""
QUIET: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
"""More settings, if spark-submit did not start the job."""
MEMORY: Final = "2g"
LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": MEMORY,
    "spark.sql.shuffle.partitions": "8",
}
"""More settings, if driver and workers are one process."""
LITTLE_BYTES_MAX: Final = 16 * 1_048_576
LITTLE_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
MUCH_JAVA: Final = "-XX:+UseParallelGC"
"""The collector that takes the least time in total, because jobs wait for their end, not for
pauses."""
LITTLE: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""More settings, for at most LITTLE_BYTES_MAX. Compiling takes longer than the work itself then.
measured: docs/benchmarks/report.md"""
MASTER_ANSWERS_S_MAX: Final = 5.0


LOGGING: Final = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
logger.python.name = org.apache.spark.api.python.PythonGatewayServer
logger.python.level = {level}
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.follow = true
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""
"""The configuration of Java's log, which also applies before a session exists.

Source: https://logging.apache.org/log4j/2.x/manual/configuration.html
"""


class NotInstalled(Exception):
    """Error: PySpark or Java is missing, or too old. The text says what to install."""


class Unreachable(Exception):
    """Error: no master of a Spark cluster answers. The text says which cluster."""


def check_installed() -> None:
    """Raise NotInstalled if PySpark or Java is missing, or too old."""
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
    """Return the major version of the Java that Spark would run on; None if there is none."""
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
    name: str,
    *,
    master: str | None = None,
    memory: str | None = None,
    scratch: Path | None = None,
    log: TextIO | None = None,
    is_little: bool = False,
    more: dict[str, str] | None = None,
) -> "SparkSession":
    """Open a session for jobs.

    Args:
        master: the cluster. None means the one of spark-submit, or else all cores of this machine.
        memory: Java's heap on this machine, such as 4g.
        scratch: an existing folder for data that does not fit in memory.
        log: a file for the output of Java, Spark and its workers; None for this process's stderr.
        is_little: whether the data has at most LITTLE_BYTES_MAX.
        more: settings that take precedence over those here.

    Raises:
        Unreachable: no master of the cluster answers.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    is_submitted = master is None and "PYSPARK_GATEWAY_PORT" in os.environ
    where = master or "local[*]"
    is_local = not is_submitted and where.startswith("local")
    prepare_environment(is_local=is_local)
    settings = {"spark.app.name": name} | SETTINGS
    if scratch is not None:
        settings["spark.sql.warehouse.dir"] = (scratch / "warehouse").as_uri()
    if not is_submitted:
        settings |= _own(where, scratch, log, is_little=is_little)
        if memory is not None:
            settings["spark.driver.memory"] = memory
        check_master(where)
    elif log is not None:
        settings["spark.log.level"] = "WARN"  # Spark takes its own log4j profile again
    conf = SparkConf().setAll(list((settings | (more or {})).items()))
    if SparkContext._gateway is None:
        streams = {} if log is None or is_submitted else {"stdout": log, "stderr": log}
        try:
            gateway = launch_gateway(conf, streams)  # type: ignore[no-untyped-call]
        except BaseException as error:
            _kill_half_started(error)
            raise
        if is_submitted:
            _submitted(gateway, log)
        SparkContext(conf=conf, gateway=gateway)
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    package = Path(__file__).resolve().parent
    if package.is_dir():  # otherwise it is a --py-files, which workers have
        spark.sparkContext.addPyFile(_archive(package))
    return spark


def _own(
    master: str, scratch: Path | None, log: TextIO | None, *, is_little: bool
) -> dict[str, str]:
    """Return the settings of a session that spark-submit did not start."""
    settings = {"spark.master": master} | QUIET
    if scratch is not None:
        settings["spark.local.dir"] = str(scratch)
    java = [f"-Dlog4j2.configurationFile={_logging(log)}"]
    if master.startswith("local"):
        settings |= LOCAL
        if is_little:
            settings |= LITTLE
        java.append(LITTLE_JAVA if is_little else MUCH_JAVA)
    return settings | {"spark.driver.extraJavaOptions": " ".join(java)}


def _kill_half_started(error: BaseException) -> None:
    """Kill the Java that PySpark was starting when it was interrupted. It would wait forever, and
    only a frame of PySpark knows it."""
    trace = error.__traceback__
    while trace is not None:
        process = trace.tb_frame.f_locals.get("proc")
        if isinstance(process, subprocess.Popen):
            process.kill()
        trace = trace.tb_next


def java_process() -> "subprocess.Popen[bytes] | None":
    """Return the Java that this process has started; None if there is none, or if it is
    spark-submit's."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    return getattr(SparkContext._gateway, "proc", None)


def prepare_environment(*, is_local: bool) -> None:
    """Set what Java and the workers take from the environment.

    That is this Python rather than the first one on the PATH, the Spark that belongs to this
    PySpark, and names of files in UTF-8.
    """
    import pyspark

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    home = Path(pyspark.__file__).parent
    if (home / "jars").is_dir():  # from pip; otherwise PySpark is a part of SPARK_HOME
        os.environ["SPARK_HOME"] = str(home)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else it looks for its own
    if locale.nl_langinfo(locale.CODESET).upper() != "UTF-8":
        os.environ["LC_ALL"] = "C.UTF-8"


def check_master(url: str) -> None:
    """Raise Unreachable if no master of a standalone cluster answers. Spark itself would report
    that only after a minute."""
    if not url.startswith("spark://"):
        return
    problems = []
    for place in url.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), MASTER_ANSWERS_S_MAX).close()
            return
        except (OSError, ValueError) as problem:
            problems.append(f"{place}: {getattr(problem, 'strerror', None) or problem}")
    raise Unreachable(f"no master of the cluster answers ({'; '.join(problems)})")


def _submitted(gateway: Any, log: TextIO | None) -> None:
    """Check the master of spark-submit, and let its Java write into the log."""
    jvm = gateway.jvm
    check_master(jvm.java.lang.System.getProperty("spark.master", ""))
    if log is not None:
        stream = jvm.java.io.PrintStream(jvm.java.io.FileOutputStream(log.name, True), True)
        jvm.java.lang.System.setErr(stream)
        loader = jvm.java.lang.ClassLoader.getSystemClassLoader()
        context = jvm.org.apache.logging.log4j.LogManager.getContext(loader, False)
        context.setConfigLocation(jvm.java.net.URI(_logging(log)))


def _logging(log: TextIO | None) -> str:
    """Return the address of a file that configures Java's log as LOGGING says. A log gets Spark's
    warnings, too; a terminal only errors."""
    path = Path(_folder()) / "log4j2.properties"
    path.write_text(LOGGING.format(level="error" if log is None else "warn"))
    return path.as_uri()


def _archive(package: Path) -> str:
    """Return this package as a file that workers can import, wherever they are."""
    return shutil.make_archive(f"{_folder()}/spark", "zip", package.parent, package.name)


@functools.cache
def _folder() -> str:
    """Return a folder for small files, which is removed when the process ends."""
    folder = tempfile.mkdtemp(prefix="tocsin-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
