"""The names of the keys that the storage has in Redis or Valkey, in one place.

    {q}:queue          partitions, acts; messages, bytes: in all logs and due stores;
                       due_messages, due_bytes: in all due stores
    {q}:groups         the groups that have cursors
    {q}:p:<n>          a partition: next, start, certified, generation, messages, bytes, sealed;
                       due_next, due_messages, due_bytes: of its due store
    {q}:log:<n>        its records, a stream; the record of offset o has the id <o + 1>-0
    {q}:idx:<n>        the same ids with count, bytes, time: what trimming and looking read
    {q}:l:<n>          producers: bucket, resolved, top; {q}:lb:<n> by bucket
    {q}:ls:<n>:<p>     a producer's stored sequences as runs, {q}:lo:<n>:<p> those that were refused
    {q}:ib:<n>         buckets of client ids; {q}:i:<n>:<until> digest -> place
    {q}:bad:<n>        what was put aside, {q}:quarantine:<n> the records themselves
    {q}:due:<n>        the due store: numbers by due time; {q}:dm:<n> number -> row
    {q}:dd:<n>         ids of clients that wait there: digest -> number; {q}:dk:<n> the numbers by
                       the hash of the key (k) and of the id (i), each in their order
    {q}:dq:<n>         rows of the due store that were put aside
    {q}:ex:<n>         what trimming has examined; {q}:ea:<n> offsets that it looks at again
    {q}:c:<n>:<g>      a cursor: version, epoch, token, assignment, floor, passed
    {q}:cr|cn|cp:…     its retries, the lengths of its side lines, its parked keys
    {q}:ca|ck:…        the offsets aside, by offset and by key
    {q}:in:<n>:<g>     an inbox, id -> letter; {q}:ia:… id -> verdicts, {q}:iq:… those ids in order
    {q}:inbox          where letters wait: <n>:<g>

All keys of a queue have one hash tag, and so one slot, so that the functions are atomic. The other
names are made in the functions (redis/begin.lua), which are given the first one.
"""

from typing import Final

from push.places import CursorPlace, Partition

CERTIFIED_CHANNELS: Final = "tocsin:certified:"
"""Prefix of channels, followed by the tag of the queue and ":". Their messages are the partitions
that have a new certified end, each followed by it, in decimal."""
DUE_CHANNELS: Final = "tocsin:due:"
"""Prefix of channels, followed by the tag of the queue and ":". Their messages are a partition in
which something was scheduled or changed, and the time at which its first message is due, in unix
milliseconds."""
LETTER_CHANNELS: Final = "tocsin:letters:"
"""Prefix of channels, followed by the place. Their messages are the ids of letters that came."""
ANSWER_CHANNELS: Final = "tocsin:answers:"
"""Prefix of channels, followed by the name of the asking gateway. Their messages are the ids of
letters that were answered."""


def queue_key(queue_id: str) -> str:
    """Return the key that a queue's functions are given."""
    return f"{{{queue_id}}}:queue"


def certified_ends(channel: bytes, message: bytes) -> list[tuple[Partition, int]]:
    """Return the certified ends that a message on one of these channels names. Empty: it is none of
    them, or no such message."""
    return _pairs(CERTIFIED_CHANNELS, channel, message)


def due_times(channel: bytes, message: bytes) -> list[tuple[Partition, int]]:
    """Return when the first message of a partition is due, by a message on one of these channels.
    Empty: it is none of them, or no such message."""
    return _pairs(DUE_CHANNELS, channel, message)


def _pairs(prefix: str, channel: bytes, message: bytes) -> list[tuple[Partition, int]]:
    queue = channel.decode("utf-8", "replace").removeprefix(prefix)
    words = message.split()
    if not queue.startswith("{") or not queue.endswith("}:") or len(words) % 2:
        return []
    if not all(word.isdigit() for word in words):
        return []
    numbers = list(map(int, words))
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return [(Partition(queue[1:-2], number), end) for number, end in pairs]


def place_of(channel: bytes) -> CursorPlace | None:
    """Return the place whose letters a channel announces; None: it is none of these channels."""
    name = channel.decode("utf-8", "replace").removeprefix(LETTER_CHANNELS)
    queue, closed, place = name.partition("}:")
    number, _, group = place.partition(":")
    if not closed or not queue.startswith("{") or not number.isdecimal() or not group:
        return None
    return CursorPlace(group, Partition(queue[1:], int(number)))
