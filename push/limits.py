"""The bounds of Tocsin, with their units and reasons.

A bound on a number or a size is a promise about memory (P9). Whatever a client, a backlog or a
flood does, it can make this process hold no more than a sum of these bounds.
"""

from typing import Final

# --- Names and messages ------------------------------------------------------------------------
NAME_CHARS_MAX: Final = 128
"""Characters of the longest queue, group, producer or client name: enough for a path-like name, and
short in a log."""
KEY_BYTES_MAX: Final = 1024
"""Bytes of the longest key. A key is routed, hashed and compared; a longer text is data and belongs
into the body."""
ID_BYTES_MAX: Final = 256
"""Bytes of the longest id that a client gives a message: a UUID, a ULID or a URL-like identifier
fits."""
CONTENT_TYPE_BYTES_MAX: Final = 256
HEADERS_MAX: Final = 64
HEADERS_BYTES_MAX: Final = 8 * 1024
"""Bytes of the names and values of all headers of a message together."""
MESSAGE_BYTES_MAX_DEFAULT: Final = 262_144
"""Bytes that the body of a message may have in a queue whose settings do not name
`message_bytes_max`."""
MESSAGE_BYTES_MAX_MAX: Final = 1_048_576
"""The largest `message_bytes_max` that a queue may have. A message is pushed in one frame, and a
frame of a few MiB holds up everything after it on a slow line."""
BODY_DEPTH_MAX: Final = 256
"""Deepest nesting of a JSON body. Some parsers of consumers fail on much deeper bodies (CPython's
at about 1,000)."""
TTL_S_MAX: Final = 10 * 365 * 86_400
SCHEDULE_S_MAX: Final = 400 * 86_400
"""Longest time in seconds for which a message can be scheduled ahead."""

# --- Frames and requests -----------------------------------------------------------------------
MESSAGES_PER_PUBLISH_MAX: Final = 1000
"""Messages in one publish, which bounds the work of one event-loop turn."""
FRAME_BYTES_MAX: Final = 2 * 1_048_576
"""Bytes of the largest WebSocket message or request body that a client may send. It holds one
message of the largest size in base64 with its headers."""
INCOMPLETE_BYTES_MAX: Final = 64 * 1_048_576
"""Bytes of WebSocket messages and request bodies that have not arrived whole, of all clients of a
gateway together: 32 of the largest. [A thousand sockets send all of one but its last byte.]"""
FRAMES_PER_MESSAGE_MAX: Final = 256
"""Frames in one WebSocket message, when a client sends an array of them."""
RANGES_PER_FRAME_MAX: Final = 4096
"""Largest number of entries, of one push each, in the list of deliveries of one ack, nack or
extend. Also the largest number of ranges of offsets in all entries together."""
REQUEST_HEADER_BYTES_MAX: Final = 16 * 1024
REQUEST_HEADER_TIMEOUT_S: Final = 10.0
"""Seconds from when a request's first byte is awaited to the end of its header. [Slowloris.]"""
REQUEST_BODY_TIMEOUT_S: Final = 30.0
"""Seconds that a request's body may take after its header, prolonged by the time that the bytes so
far take at the slowest allowed rate (`SLOWEST_BYTES_PER_S`). Also the seconds that may pass without
a byte. [Slowloris in the body.]"""
TLS_HANDSHAKE_TIMEOUT_S: Final = 10.0
"""Seconds from the accepted socket to the end of the TLS handshake. [Slowloris, before the first
byte of a request.]"""
HELLO_TIMEOUT_S: Final = 10.0
"""Seconds from the opened socket to the client's `hello` frame."""
HELD_TIMEOUT_S: Final = 10.0
"""Seconds that a client that came back has to say which deliveries its consumer holds. After them
the consumer's partitions go to others. A part of a list that names deliveries begins the time anew,
up to HELD_PARTS_MAX times. [A client answers pings and says nothing, and keeps its partitions.]"""
HELLO_BYTES_MAX: Final = 16 * 1024
"""Bytes of the largest WebSocket message before a `hello` was accepted. It holds a token of 8
KiB."""
HEARTBEAT_S: Final = 20.0
"""Seconds of a client's silence after which a ping goes out; below the idle timeout of every
proxy."""
HEARTBEAT_TIMEOUT_S: Final = 20.0
"""Seconds from an unanswered ping until the socket counts as dead, unless what is on its way to the
client moves."""
SLOWEST_BYTES_PER_S: Final = 8 * 1024
"""Bytes a second from which a line counts as slow, and not as dead. Deadlines for large data grow
by the data's size at this rate."""
ANNOUNCED_BYTES: Final = 64 * 1024
"""Bytes of a frame above which it is announced to the client, because the client may see nothing of
the frame before it is whole."""
MARK_BYTES: Final = 64 * 1024
"""Bytes sent to a client after which a mark is set, which the client answers when all of them have
arrived (push.transit). That takes eight seconds on the slowest line, less than a lease."""
MARK_BYTES_MAX: Final = 256 * 1024
"""Upper bound of the bytes that are sent between two marks, on a connection that is known to carry
much."""
TRANSIT_BYTES_MIN: Final = 128 * 1024
TRANSIT_BYTES_MAX: Final = 4 * 1_048_576
"""Most bytes in transit to a client before it is given more: from the first, on a slow line, up to
the second, which is as much as a kernel buffers. At least one push, whatever its size."""
TRANSIT_SLOW_S: Final = 1.0
"""Seconds to arrive from which data shows that its line is slow."""
TRANSIT_STILL_S: Final = 20.0
"""Seconds without progress after which a transfer is considered stuck. They are as many as a
heartbeat's, because a slow line's acknowledgements may come in large steps."""
TRANSIT_LOOK_S: Final = 5.0
"""Seconds between two checks of a lease that does not run, because its message is in transit."""
TRANSITS_KEPT_MAX: Final = 64
"""Slow transfers of a session that are remembered, each of a second or longer. The lease of a
message counts from its arrival, if that is among them, otherwise from when it was given."""

# --- Sessions ----------------------------------------------------------------------------------
SESSION_LINGER_S_MAX: Final = 300.0
"""Most seconds for which a session whose transport was lost waits for its client to come back."""
SESSIONS_MAX: Final = 50_000
"""Sessions on one gateway: those over WebSockets and long polls, and those that linger. One more is
refused, with the advice to come back later. Fewer are admitted if the process may open fewer files.
WebSockets take 17 KiB each, 830 MiB in all, and twice that over TLS of our own."""
BAD_MESSAGES_PER_SESSION_MAX: Final = 16
"""Messages of a session that cannot be decoded. Each is answered; one more ends the session, and so
does any before `hello`."""
CLOSE_TIMEOUT_S: Final = 5.0
"""Seconds from our last bytes, such as a close frame or the refusal of a request, to the end of the
socket, whatever the other side does."""
SUBSCRIPTIONS_PER_SESSION_MAX: Final = 256
SESSIONS_PER_PAGE_MAX: Final = 1000
"""Sessions described in one answer."""
SUBSCRIPTIONS_PER_PAGE_MAX: Final = 2000
"""Subscriptions described in one answer about several sessions: some ten milliseconds, in which
nothing else has a turn."""
CREDIT_MAX: Final = 10_000
"""Largest credit of a subscription: messages that it may be given before it grants more."""
IN_FLIGHT_PER_SUBSCRIPTION_MAX: Final = 4 * CREDIT_MAX
"""Messages that a subscription may hold unsettled, whatever its credit. Each is a lease in memory,
of less than 1 KiB. [A client grants credit anew for whatever it is given, and never acks.]"""
NAMED_AS_HELD_MAX: Final = 4 * IN_FLIGHT_PER_SUBSCRIPTION_MAX
"""Messages of an earlier epoch that the client of a subscription may name when it comes back: those
that it holds, and those whose acks may not have been received. Also the ranges that a session may
name in lists that are not complete yet."""
HELD_PARTS_MAX: Final = NAMED_AS_HELD_MAX // 1000
"""Parts of one list of held deliveries that begin HELD_TIMEOUT_S anew: enough to name all that can
be named, a thousand ranges each. [One range every nine seconds: its partitions have no owner for
days.]"""
IN_FLIGHT_PULLED_MAX: Final = 4 * CREDIT_MAX
"""Messages of a group that were pulled through one gateway and are unsettled; the next pull waits
for one of them. [A script pulls in a loop and never acks, under a lease of hours.]"""
KEYS_PER_READER_MAX: Final = 1000
WRITE_BUFFER_BYTES_MAX: Final = 64 * 1024
"""Bytes waiting for a socket above which it gets no more pushes until it drains. 1,000 sockets that
stop reading cost at most 1,000 x (this + two pushes: the one that goes beyond it, and the one that
is partly written). Twice as much made nothing faster."""
PUSH_BYTES_MAX: Final = 64 * 1024
"""Bytes of the messages in one push. A larger single message is a push of its own."""
PUSH_MESSAGES_MAX: Final = 1024
"""Offsets that one push spans, those included that it skips. Its ledger is a bit mask of that many
bits."""

# --- Publishing --------------------------------------------------------------------------------
IN_FLIGHT_PER_PRODUCER_MAX: Final = 10_000
"""Sequences of a producer from its `resolved` to the newest. The storage keeps the exact set of
those that it has (R6)."""
PENDING_MESSAGES_MAX: Final = 50_000
PENDING_BYTES_MAX: Final = 64 * 1_048_576
"""Messages, and their bytes, that wait on one gateway for a commit or for its end. A queue may have
up to four times what is left free (`push.commit_sharing.has_room`). A publish that goes beyond that
is refused as `overloaded`, so that there is room for every other queue."""
COMMIT_BYTES_SHARED: Final = 128 * 1024
"""Bytes that go with one commit while several queues publish, for each millisecond that the storage
needs for its quickest commits. So the next commit is never far. A queue that is alone waits for
none, and its commits are as large as its load makes them."""
COMMIT_BYTES_SKEWED: Final = 16 * 1024
"""Bytes that go with one commit while the load is skewed (`push.commit_sharing`), for each
millisecond of a small commit. Some sixty messages cost the storage's thread and the loop about half
a millisecond, so that a commit takes half as long again as a small one. The last record taken may
go beyond it. With half of it ten queues that publish alike were taken for heavy ones."""
COMMIT_BYTES_SHARED_MAX: Final = 4 * 1_048_576
COMMIT_MESSAGE_BYTES: Final = 256
"""Bytes that the messages of a commit count as at least, on average, when several queues share it.
A message costs time, however small it is."""
COMMIT_SLOW_S: Final = 5.0
"""Seconds from which a commit under way is slow. New publishes to its lane are refused at once
until it has ended."""
COMMIT_DEADLINE_S: Final = 30.0
"""Seconds after which the messages of a commit under way are answered `unknown`. If the commit ends
after all, they are pushed all the same."""
RECORD_MESSAGES_MAX: Final = 1024
RECORD_BYTES_MAX: Final = 1_048_576
"""Messages and bytes of one record, which closes at the first of the two bounds. A larger single
message is a record of its own."""
RECORD_BYTES_SHARED: Final = 32 * 1024
"""Bytes beyond which an open record takes no further publish while several queues publish, because
a record goes whole with one commit."""
PRODUCER_IDLE_S: Final = 3600
"""Seconds without a message of a producer after which a partition forgets its set of sequences.
Late retries are refused then (R6), for about ten times as long."""
DEDUP_BUCKETS: Final = 4
"""Number of buckets of time in which a dedup window is remembered (R8)."""

# --- Delivery ----------------------------------------------------------------------------------
HELD_PER_PARTITION_MAX: Final = 256
"""Offsets of gated keys held in memory per (group, partition). Further ones from the log go to side
lines (R18)."""
ASIDE_UNWRITTEN_MAX: Final = 1024
"""Offsets on their way to the side lines of a (group, partition), holes in its cursor until they
are durably there; beyond, the partition waits. Half of them go at a time. [With an eighth of them
at once, each key's offsets came to a page of their own, and a tenth of all bytes written were such
pages.]"""
DYING_PER_PARTITION_MAX: Final = 1024
"""Number of messages of a (group, partition) that may be on their way to the dead letters one by
one, until the cursor's write about them is durable. Beyond it nothing is given for the first time;
messages that returned are still tried again."""
DEAD_RANGES_MAX: Final = 4096
"""Ranges of messages on their way to the dead letters, per group and partition; beyond, the
partition waits until some have arrived. A backlog that expires is one range."""
DEAD_RUN_MIN: Final = 16
"""Number of expired messages in a row from which they go as one range. Fewer go one by one, and
each holds up its own key until that is durable, and no other."""
DEAD_PER_MOVE_MAX: Final = 512
"""Messages that the owner of a partition moves to the dead-letter queue at a time."""
LINES_PER_PARTITION_MAX: Final = 100_000
"""Keys that may be gated at once per (group, partition); beyond, the partition waits."""
TAIL_CACHE_BYTES_MAX: Final = 32 * 1_048_576
"""Bytes of certified records that a gateway keeps in memory, so that a consumer that keeps up never
reads the disk: twenty thousand records of one message each. Bytes here and below are those of
`Record.memory_bytes`."""
READ_BYTES_MAX: Final = 1_048_576
"""Bytes of one read from the storage, which has at least one record."""
READS_LIVE_MAX: Final = 64
READS_BEHIND_MAX: Final = 4
"""Reads of logs that are under way at once at one server of the storage: first for consumers that
follow the end of a log, then for those far behind it. A thousand of the latter read a mebibyte
each, and no other consumer waits for them."""
BEHIND_MESSAGES: Final = 4096
"""Number of messages before the end of a log from which a consumer is far behind."""
READ_DEADLINE_S: Final = 10.0
"""Most seconds that a caller waits for a read. After them it learns that the storage does not
answer, and reads again. A read of the log in order keeps its place until it has ended; others are
given up."""
AHEAD_BYTES_MAX: Final = 32 * 1_048_576
"""Bytes read for consumers and not taken by them yet, all together. Beyond it each read brings no
more than a push. [A thousand consumers with a backlog stall, each with a whole read in hand.]"""
LINE_WINDOW_MAX: Final = 256
"""Most messages in flight of a key that recovers: 1, 2, 4 … up to this, until its line is empty."""
KEY_AHEAD_MAX: Final = 8
"""Most messages in flight of a slow key: no more than a handful waits at the consumer for the
message that is handled. [A key recovers, its handler hangs, and 255 messages behind it take the
credit.]"""
KEY_PATIENCE_S: Final = 0.25
KEY_PATIENCE_S_MAX: Final = 1.0
"""Seconds in flight from which a message shows that its key may be slow: three times what the
consumer needs at best, but no less than the first and no more than the second of the two. [Far
away, each settles after 0.3 s.]"""
PARKED_PER_CALL_MAX: Final = 1000
"""Parked keys that one call lists, or decides about."""
LOOK_MESSAGES_MAX: Final = 1000
"""Messages that one look into a queue shows an operator, and dead letters that one call sends
back."""
LOOK_ANSWER_BYTES_MAX: Final = 1_048_576
"""Bytes of the messages that one look into a queue shows; at least one message."""
LOOK_BYTES_MAX: Final = 16 * 1_048_576
"""Bytes read for one look into a queue, such as one by key or reason. After that many the answer
says where to go on. [A peek for a key that is not there reads a hundred GB, and all others wait for
the disk.]"""
COUNT_BYTES_MAX: Final = 4 * 1_048_576
"""Bytes read to count the messages in one list of keys that wait; after that many the counts are
lower bounds. [A console asks once a second, and each answer reads the whole backlog.]"""
GROUPS_EXPLAINED_MAX: Final = 100
"""Groups for which one call explains a key; the log is read once for all of them."""
KEYS_PER_LOOK_MAX: Final = 1000
"""Keys that wait, or leases, in one answer."""
SIDE_LOAD_MAX: Final = 16
"""Offsets of a side line read at a time. Many lines may be read at once, and all that is read is
held in memory."""
REASON_CHARS_MAX: Final = 1024
"""Characters of a nack's reason, which is stored with each message that the nack returns."""
FINISHED_PUSHES_MAX: Final = 1024
"""Pushes of a (group, partition) with nothing left in flight whose extent is remembered, so that a
repeated ack differs from an invented one."""
ENDED_RANGES_MAX: Final = 256
"""Ranges of messages, per group and partition, that were given out and that no ack has settled or
will settle. Acks of them are stale (R21). Beyond this number the lowest ranges become one with all
that lies between them. A repeated ack of a message in between is then called stale as well."""
PULL_MESSAGES_MAX: Final = 1000
PULL_BYTES_MAX: Final = 1_048_576
"""Bytes of one pull's answer, after which no further record is added. The answer is in memory as a
whole, and on a slow line a long time on its way."""
PULL_WAIT_S_MAX: Final = 30.0
POLL_BYTES_MAX: Final = 1_048_576
"""Bytes of the frames in one answer to a long poll; at least one frame."""
PULLS_WAITING_MAX: Final = 10_000
"""Pulls that wait on one gateway. One principal may have up to four times the number that is left
free."""
PULL_IDLE_S: Final = 30.0
"""Seconds without a pull after which a group's virtual consumer leaves (R24). If the group has no
other consumer, pulled messages in flight keep it."""
INBOX_LETTERS_MAX: Final = 256
INBOX_BYTES_MAX: Final = 256 * 1024
"""Requests that wait in the inbox of a (group, partition): acks, nacks, extends and decisions about
parked keys that reached another gateway than its owner's (R24). One is 80 bytes as a rule and 60
KiB at most; the next one beyond either bound is `overloaded`. [The owner has died, and its group's
clients send again.]"""
ANSWERS_KEPT_MAX: Final = 4 * INBOX_LETTERS_MAX
"""Answers that are kept beside an inbox until the asking gateway has seen them, of one byte for
each delivery."""
LETTERS_KEPT_S: Final = 60.0
"""Seconds after the last request or answer for which an inbox and its answers are kept, far longer
than any gateway waits for an answer. The asking gateway or the owner's may have died."""
LETTER_DEADLINE_S: Final = 5.0
"""Seconds within which a caller has an answer about a request to another gateway's owner, if only
`unknown`."""
LETTER_AGAIN_S: Final = 0.5
"""Seconds between two sendings of a request to another gateway's owner while no answer comes,
because a message between the two gateways may be lost."""
LETTERS_LOOK_S: Final = 1.0
"""Seconds between two looks for letters without a notice, by a gateway whose owned partitions have
pulled and unsettled messages, or keys that may be parked."""
LETTERS_UNDER_WAY_MAX: Final = 4096
"""Requests to owners elsewhere that wait for an answer at a gateway. Also the requests of other
gateways that wait here until their effect is durable."""
ANSWERS_KNOWN_MAX: Final = 4 * LETTERS_UNDER_WAY_MAX
"""The latest answers that a gateway remembers to have given to other gateways' requests, whose
inboxes may show them once more."""
DRAIN_S: Final = 30.0
"""Most seconds that a moving partition waits for its old owner to settle what is in flight
(R20)."""
BACKOFF_S_MAX: Final = 3600.0
DELAY_S_MAX: Final = 86_400

# --- Queues and groups -------------------------------------------------------------------------
PARTITIONS_MAX: Final = 1024
QUEUES_MAX: Final = 100_000
GROUPS_PER_QUEUE_MAX: Final = 1000
QUEUES_PER_PAGE_MAX: Final = 1000
"""Queues described in one answer. Each costs a look into the storage."""

# --- The metadata, as far away as it may be -----------------------------------------------------
METADATA_DEADLINE_S: Final = 5.0
"""Seconds within which a call to the metadata is answered, or fails for its caller. Calls about the
members of groups have less (`MEMBERSHIP_DEADLINE_S`)."""
MEMBERSHIP_DEADLINE_S: Final = 1.0
"""Seconds within which a call to the metadata about the members of a group is answered, or fails.
Without an answer the gateway goes on with what it knows."""
METADATA_CALLS_MAX: Final = 256
"""Calls to the metadata under way within their deadline, of each kind; one more is refused at
once."""
METADATA_LATE_MAX: Final = 1024
"""Calls to the metadata that go on after their deadline, usually changes. From this number on no
call begins."""
METADATA_FRESH_S: Final = 1.0
"""Most seconds for which a name that was looked up is used without another look-up. A change made
here counts at once; one made through another gateway, as soon as the name is looked up again."""
METADATA_STALE_S: Final = 3600.0
"""Seconds for which a known name counts while the metadata does not answer. Messages meet the
storage, which knows queues by their ids. It takes nothing for a queue that was deleted
meanwhile."""
NAMES_UNKNOWN_MAX: Final = 10_000
"""Unknown names that are remembered as such, of queues and of groups."""
BREAKER_FAILURES: Final = 3
"""Number of calls to one service (the metadata, a lane's commits, a Redis server) that fail one
after another until no more are made."""
BREAKER_OPEN_S: Final = 1.0
"""Seconds for which no call to a service is made after BREAKER_FAILURES; then one call is a
trial."""

# --- Pages and access --------------------------------------------------------------------------
PAGE_FILE_BYTES_MAX: Final = 1_048_576
PAGE_FILES_MAX: Final = 512
PAGES_BYTES_MAX: Final = 8 * 1_048_576
"""Bytes in memory of the files of the demo and the console: twenty times what these take."""
TOKENS_MAX: Final = 10_000
"""API tokens and certificates of a broker; each is some 500 bytes in memory."""
TICKETS_MAX: Final = 1000
"""Tickets that wait to be used, each for 30 s: 300 bytes each. Only the holder of a token makes
some. A principal gets no more when as many of its own wait as are free."""
JWT_BYTES_MAX: Final = 8192
JWTS_KEPT_MAX: Final = 10_000
"""JWTs whose verification is remembered; each is some 500 bytes."""
COOKIE_BYTES_MAX: Final = 3072
"""Bytes of a cookie's value: browsers keep 4096 bytes with its name and attributes (RFC 6265,
6.1)."""
ACCESS_REQUEST_BYTES_MAX: Final = 1024
"""Bytes of the body of a request for access, which anybody may send; a ticket has 32 characters."""

# --- Usage and audit ---------------------------------------------------------------------------
USAGE_KEYS_MAX: Final = 10_000
"""Combinations of tenant, principal and queue with a usage line of their own in a minute: 1 KiB
each in memory, 400 bytes each on disk. The use of further ones is summed in one line."""
USAGE_QUEUES_PER_SESSION_MAX: Final = 256
"""Queues whose counter a session keeps at hand, as many as it may subscribe to; for others it is
looked up each time."""
USAGE_LINES_KEPT_MAX: Final = 20_000
"""Usage lines that wait for a disk that is full: two full minutes."""
ACCESS_KEYS_MAX: Final = 1000
"""Sign-ins of different kinds (by principal, credential and address) that are counted apart in a
minute: this number of those admitted, and of those refused. Further ones are summed, so that a
flood of bad credentials is no flood of lines."""
AUDIT_REFUSED_PER_MINUTE_MAX: Final = 600
"""Refused acts of one kind in a minute with an audit line of their own; further ones are counted. A
client without rights must not be able to push the acts of others out of the trail."""
AUDIT_ENTRIES_KEPT_MAX: Final = 10_000
"""Audit entries that wait for a disk that is full. Beyond it entries are dropped, and the trail
says how many."""
JOURNAL_FILE_BYTES_MAX: Final = 16 * 1_048_576
"""Size of a file of usage or audit lines after which the next one begins."""
LOG_BYTES_MAX: Final = 1024 * 1_048_576
LOG_AGE_S: Final = 7 * 86_400.0
"""Size and age of the delivery log, if the settings do not say. Beyond either, the log's oldest
files are deleted."""
LOG_FILE_BYTES: Final = 64 * 1_048_576
LOG_FILE_S: Final = 60.0
"""Size and age at which a file of the delivery log is finished, and can be read."""
LOG_WAITING_BYTES_MAX: Final = 16 * 1_048_576
"""Bytes of the delivery log in memory that wait for its writer: five seconds of all that a gateway
can do. Further lines are counted and not logged."""
LOG_SPANS_UNWRITTEN_MAX: Final = 10_000
"""Spans of the delivery log that wait for their sockets to be written."""
# --- Rates -------------------------------------------------------------------------------------
DEBTORS_MAX: Final = 100_000
"""Names (principals, addresses, credentials) whose use is remembered while no session is charged to
them: 1 KiB each. Beyond this number the names that owe least are forgotten."""
SHARED_BUCKETS_MAX: Final = 100_000
"""Buckets that gateways share and of which one has used more than its standing share: 0.5 KiB each,
in the store. Beyond it the buckets that will be empty soonest are forgotten."""

# --- Storage -----------------------------------------------------------------------------------
FREE_BYTES_RESERVE: Final = 256 * 1_048_576
"""Bytes free on the storage's disk below which publishes are refused while acks and deletes go on
(R31)."""
MEMORY_RESERVE_SHARE: Final = 0.1
"""Share of the memory that a Redis or Valkey may use. If less is free, publishes are refused. Acts
that drain it go on, and they take memory, too (R29)."""
MEMORY_RESERVE_REOPENS: Final = 1.5
"""Multiple of the reserve that has to be free before publishing opens again."""
TRIM_BYTES_PER_COMMIT_MAX: Final = 4 * 1_048_576
DATA_KEY_MESSAGES_MAX: Final = 1 << 28
"""Messages sealed under one data key, which then gets a successor. Each record takes one random
nonce. NIST SP 800-38D, 8.3: at most 2^32 of them under a key, which keeps a collision below
2^-32."""
DATA_KEY_BYTES_MAX: Final = 64 * 1024 * 1_048_576
"""Bytes sealed under one data key: 2^32 blocks of AES, far below GCM's bounds."""
DATA_KEY_S_MAX: Final = 86_400.0
"""Most seconds for which one data key seals. Its loss would cost a day."""
OFFSET_MAX: Final = (1 << 40) - 1
"""Highest offset of a partition; a record's row id is partition << 40 | offset. 348 years at
100/s."""

ALERTS_MAX: Final = 16
"""Largest number of alerts that one queue may have."""
METRICS_QUEUES_MAX: Final = 50
METRICS_GROUPS_MAX: Final = 100
"""Queues and groups that have labels of their own in /metrics. Two histograms of 18 buckets are
most of the 5 KB or so that each takes there."""

assert PUSH_BYTES_MAX <= WRITE_BUFFER_BYTES_MAX
assert PUSH_MESSAGES_MAX <= CREDIT_MAX <= IN_FLIGHT_PER_SUBSCRIPTION_MAX
assert PULL_MESSAGES_MAX <= IN_FLIGHT_PULLED_MAX
assert MESSAGE_BYTES_MAX_MAX <= FRAME_BYTES_MAX // 2 + 1
assert MESSAGES_PER_PUBLISH_MAX <= IN_FLIGHT_PER_PRODUCER_MAX <= PENDING_MESSAGES_MAX
