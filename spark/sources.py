"""The log's files in their places: in any folders, on any file system that Spark reads.

Spark lists and reads them, so a local folder, a pattern and an object store are alike, and a
cluster's workers share the work. No Python runs on a worker.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark.files import Listed, Raw
from spark.lake import LakeError

PATTERN: Final = "*.jsonl"
"""The names of finished files. A file that is being written ends in `.part`."""
STREAMED_FROM: Final = 32 * 1_048_576
"""The size from which the driver reads a file as a stream. A worker holds a smaller one in memory
as a whole, with a few copies."""
_TAIL: Final = 4096
"""The number of bytes at a file's end that contain its last line."""
_PATTERN_MARKS: Final = frozenset("*?[{")
_NOT_FOUND: Final = "PATH_NOT_FOUND"


def _reader(spark: SparkSession, format_: str, *, is_pattern: bool = False) -> Any:
    """Return a reader that takes each path as it is. No `key=value` in it is a column, and no mark
    in it a pattern, unless `is_pattern`."""
    return (
        spark.read.format(format_)
        .option("recursiveFileLookup", "true")
        .option("__globPaths__", str(is_pattern).lower())
    )


# --- Listing ------------------------------------------------------------------------------------


def listed(spark: SparkSession, places: Sequence[str]) -> list[Listed]:
    """Return the finished files of these folders, patterns and files, and of all folders in them.

    Folders whose names begin with "." or "_" are hidden and left out.

    Raises:
        LakeError: one of the places does not exist, or nothing matches it.
    """
    patterns = [place for place in places if _is_pattern(spark, place)]
    folders = [place for place in places if place not in patterns]
    found: dict[str, Listed] = {}
    for some, is_pattern in ((folders, False), (patterns, True)):
        for one in _listed(spark, some, is_pattern) if some else ():
            found[one.path] = one
    return list(found.values())


def _is_pattern(spark: SparkSession, place: str) -> bool:
    return bool(_PATTERN_MARKS & set(place)) and not exists(spark, place)


def _listed(spark: SparkSession, places: list[str], is_pattern: bool) -> list[Listed]:
    reader = _reader(spark, "binaryFile", is_pattern=is_pattern).option("pathGlobFilter", PATTERN)
    try:
        files = reader.load(places)
    except AnalysisException as error:
        if error.getCondition() != _NOT_FOUND:
            raise
        path = (error.getMessageParameters() or {}).get("path", places[0])
        what = "nothing matches" if is_pattern else "there is no folder"
        raise LakeError(f"{what} {path}; name one that has a delivery log") from None
    rows = files.select("path", "length", F.unix_millis("modificationTime").alias("ms")).collect()
    found = [Listed(row["path"], row["length"], row["ms"]) for row in rows]
    return found + _empty(spark, files, {one.path for one in found})


def _empty(spark: SparkSession, files: DataFrame, others: set[str]) -> list[Listed]:
    """Return the files without a byte, which a job does not see."""
    joined = spark._jvm.org.apache.hadoop.util.StringUtils.join(  # type: ignore[union-attr]
        "\n", files._jdf.inputFiles()
    )
    paths = {_plain(uri) for uri in joined.split("\n") if uri} - others
    found = []
    for path in sorted(paths):
        place, system = _opened(spark, path)
        status = system.getFileStatus(place) if system.exists(place) else None
        if status is not None and status.getLen() == 0:
            found.append(Listed(path, 0, status.getModificationTime()))
    return found


def _plain(uri: str) -> str:
    """Return the path of a URI as Hadoop writes it."""
    scheme, separator, rest = uri.partition(":")
    return unquote(f"{scheme}{separator}{rest.removeprefix('//') if rest[:3] == '///' else rest}")


def _opened(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Return (path, file system) as Java knows them."""
    place = spark._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]
    return place, place.getFileSystem(spark._jsc.hadoopConfiguration())


def exists(spark: SparkSession, path: str) -> bool:
    """Whether a file or a folder exists."""
    place, system = _opened(spark, path)
    return bool(system.exists(place))


def is_same(spark: SparkSession, one: Listed) -> bool:
    """Whether a file still exists as it was listed."""
    place, system = _opened(spark, one.path)
    if not system.exists(place):
        return False
    status = system.getFileStatus(place)
    return bool(
        status.getLen() == one.bytes and status.getModificationTime() == one.modified_unix_ms
    )


# --- Reading ------------------------------------------------------------------------------------


def read_ends(spark: SparkSession, files: Sequence[Listed]) -> list[Raw]:
    """Read each file once: its last line, and the CRC-32 of everything before. Files that have
    disappeared meanwhile are left out."""
    found = [Raw(one, b"", 0) for one in files if not one.bytes]
    small = {one.path: one for one in files if 0 < one.bytes < STREAMED_FROM}
    if small:
        found += _read_whole(spark, small)
    for one in files:
        if one.bytes >= STREAMED_FROM and exists(spark, one.path):
            found.append(_read_as_stream(spark, one))
    return found


def _read_whole(spark: SparkSession, files: dict[str, Listed]) -> list[Raw]:
    content = F.col("content")
    size = F.length(content)
    tail = content.substr(F.greatest(size - (_TAIL - 1), F.lit(1)), F.lit(_TAIL))
    last = _last_line(tail)
    body = content.substr(F.lit(1), size - F.length(last))
    rows = load(spark, "binaryFile", files).select(
        "path", last.alias("last"), F.crc32(body).alias("crc32")
    )
    return [Raw(files[row["path"]], bytes(row["last"]), row["crc32"]) for row in rows.collect()]


def _last_line(tail: Column) -> Column:
    return F.substring_index(tail.cast("string"), "\n", -2).cast("binary")


def _read_as_stream(spark: SparkSession, one: Listed) -> Raw:
    java: Any = spark._jvm
    place, system = _opened(spark, one.path)
    stream = system.open(place)
    try:
        stream.seek(max(0, one.bytes - _TAIL))
        tail = bytes(java.org.apache.commons.io.IOUtils.toByteArray(stream))
        last = b"\n".join(tail.split(b"\n")[-2:])
        stream.seek(0)
        crc32 = java.java.util.zip.CRC32()
        nowhere = java.java.io.OutputStream.nullOutputStream()
        sink = java.java.util.zip.CheckedOutputStream(nowhere, crc32)
        size = one.bytes - len(last)
        java.org.apache.commons.io.IOUtils.copyLarge(stream, sink, 0, size)
        return Raw(one, last, crc32.getValue())
    finally:
        stream.close()


def load(spark: SparkSession, format_: str, paths: Iterable[str]) -> DataFrame:
    """Return a DataFrame of these files: with `text` a row a line, with `binaryFile` a row a file.

    Raises:
        FileNotFoundError: one of them has disappeared.
    """
    try:
        frame: DataFrame = _reader(spark, format_).option("lineSep", "\n").load(list(paths))
    except AnalysisException as error:
        if error.getCondition() != _NOT_FOUND:
            raise
        raise FileNotFoundError(str(error)) from None
    return frame


def name() -> Column:
    """Return the name of the file that a row was read from."""
    # A "+" in a URI's path is a "+".
    return F.url_decode(F.replace(F.col("_metadata.file_name"), F.lit("+"), F.lit("%2B")))
