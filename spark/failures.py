"""The sentence in which a failure of Spark ends. Pure: texts in, a text out.

Spark reports a failure as a hundred lines of Java and of Python. These are in the log of the job. A
person reads the one thing to act on.
"""

import re
from typing import Final

SENTENCE_MAX: Final = 300
_NO_MEMORY: Final = (
    "Spark ran out of memory; --memory (spark-submit: --driver-memory) gives it more"
)
_KNOWN: Final = (
    # The message of Spark's own minimum names the setting, but not the option of a job.
    (r"OutOfMemoryError|GC overhead limit|\[INVALID_(?:DRIVER|EXECUTOR)_MEMORY", _NO_MEMORY),
    (r"Too small maximum heap|Could not reserve enough space|Cannot allocate memory", _NO_MEMORY),
    (r"Invalid maximum heap size: (\S+)", "{0} is no amount of memory for Java; write 4g"),
    (r"No space left on device|Disk quota exceeded|disk is full", "the disk is full"),
    (
        r"PYTHON_VERSION_MISMATCH",
        "the workers run another version of Python than the driver; PYSPARK_PYTHON names one that "
        "is at the same place on every machine",
    ),
    (
        r'Cannot run program "([^"]+)"',
        "a worker has no {0}; PYSPARK_PYTHON names a Python that is at the same place on every "
        "machine",
    ),
    (
        r"Python worker (?:exited|crashed|failed to connect)|from pyspark\.daemon's stdout",
        "a Python process of Spark ended unexpectedly, killed or for lack of memory",
    ),
    (
        r"ExecutorLostFailure|Master removed our application",
        "the cluster lost its workers again and again",
    ),
    (
        r"All masters are unresponsive|Cannot call methods on a stopped SparkContext",
        "the cluster gave no answer, or closed the connection",
    ),
    (r"\[PATH_NOT_FOUND\] Path does not exist: (.+?)\.?(?: SQLSTATE|$)", "there is no {0}"),
    (r"UnsupportedClassVersionError", "this Java is too old for this Spark"),
    (
        r"invalid null input: name|basedir must be absolute: \?",
        "Java needs a user with a name, and this one has only a number",
    ),
)
_PYTHON: Final = re.compile(r"PYTHON_EXCEPTION|PythonException")
_PYTHON_LAST: Final = re.compile(
    r"^(\w+(?:\.\w+)*(?:Error|Exception|Interrupt|Exit)(?:: .*)?)$", re.M
)
_CAUSE: Final = re.compile(r"^(?:Caused by: |: )(?:[\w.$]+\.)?(\w+): (.+)$", re.M)


def explain(error: BaseException, *, log: str = "", java_ended: int | None = None) -> str:
    """Return a sentence without its full stop.

    Args:
        log: the end of Java's output. It only counts if Java has ended, because a job that failed
            for another reason may have survived a lack of memory before.
        java_ended: the exit code of Java if it ended before the job did; negative for a signal.
    """
    text = str(error)
    if "JAVA_GATEWAY_EXITED" in text:
        return _short(_known(log) or "Java did not start")
    sentence = _known(text)
    if sentence is None and java_ended is not None:
        sentence = _known(log) or _ended(java_ended)
    if sentence is None and _PYTHON.search(text):
        lines = _PYTHON_LAST.findall(text)
        sentence = f"a worker failed in Python: {lines[-1]}" if lines else None
    return _short(sentence or _own_words(error))


def _known(text: str) -> str | None:
    for pattern, sentence in _KNOWN:
        found = re.search(pattern, text)
        if found is not None:
            return sentence.format(*found.groups())
    return None


def _ended(code: int) -> str:
    if code < 0:
        return f"signal {-code} ended Java while it worked, perhaps because memory was short"
    return f"Java ended with exit code {code} while it worked"


def _own_words(error: BaseException) -> str:
    """Return the innermost cause that Java names, or else the first line of the error itself."""
    text = str(error)
    causes = _CAUSE.findall(text)
    if causes:
        name, words = causes[-1]
        return f"{name}: {words}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if first.startswith("["):  # Spark's own errors carry their class
        return first
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _short(sentence: str) -> str:
    sentence = " ".join(sentence.split()).rstrip(".")
    return sentence if len(sentence) <= SENTENCE_MAX else f"{sentence[: SENTENCE_MAX - 1]}…"
