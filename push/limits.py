"""Every bound of Tocsin, each with its unit and its reason.

A bound is a promise about memory (P9). Whatever a client, a backlog or a flood does, it can make
this process hold no more than a sum of the lines below.
"""

from typing import Final

# --- Names and messages ------------------------------------------------------------------------
NAME_BYTES_MAX: Final = 128
"""Queue, group, producer and client names: long enough for a path-like name, short in a log."""
KEY_BYTES_MAX: Final = 1024
"""A key is routed, hashed and compared; a longer text is data and belongs into the body."""
ID_BYTES_MAX: Final = 256
"""A client's message id: a UUID, a ULID or a URL-like identifier fits."""
CONTENT_TYPE_BYTES_MAX: Final = 256
HEADERS_MAX: Final = 64
HEADERS_BYTES_MAX: Final = 8 * 1024
"""Names and values of all headers of a message together."""
MESSAGE_BYTES_MAX_DEFAULT: Final = 262_144
"""A queue's default for `message_bytes_max`."""
MESSAGE_BYTES_MAX_MAX: Final = 1_048_576
"""The largest `message_bytes_max` that a queue may have. A push is one frame, and a frame of a few
MiB holds up everything after it on a slow line."""
BODY_DEPTH_MAX: Final = 256
"""Nesting of a JSON body. Parsers of consumers give up somewhere above (CPython's at about 1,000).
A body that is shorter than this need not be looked at."""
TTL_S_MAX: Final = 10 * 365 * 86_400

# --- Frames and requests -----------------------------------------------------------------------
MESSAGES_PER_PUBLISH_MAX: Final = 1000
"""Messages in one publish, which bounds the work of one event-loop turn."""
FRAME_BYTES_MAX: Final = 2 * 1_048_576
"""A WebSocket message or a request body that a client sends; holds one message of the largest
size in base64 with its headers."""
INCOMPLETE_BYTES_MAX: Final = 64 * 1_048_576
"""Messages and bodies that are not complete yet, of all clients together: 32 of the largest. [A
thousand sockets send all of one but its last byte.]"""
FRAMES_PER_MESSAGE_MAX: Final = 256
"""Frames in one WebSocket message, when a client sends an array of them."""
RANGES_PER_FRAME_MAX: Final = 4096
"""Deliveries that one ack, nack or extend may name; and the same number of ranges, summed over all
of them."""
REQUEST_HEADER_BYTES_MAX: Final = 16 * 1024
REQUEST_HEADER_TIMEOUT_S: Final = 10.0
"""From the first byte awaited to the end of the request's header. [Slowloris.]"""
REQUEST_BODY_TIMEOUT_S: Final = 30.0
"""From the end of the header to that of the body, and longer by what has come at the slowest rate
that is allowed (`SLOWEST_BYTES_PER_S`); and without a byte. [Slowloris in the body.]"""
TLS_HANDSHAKE_TIMEOUT_S: Final = 10.0
"""From the accepted socket to the end of the TLS handshake. [Slowloris, before the first byte of
a request.]"""
HELLO_TIMEOUT_S: Final = 10.0
"""From the opened socket to the `hello` frame."""
HELD_TIMEOUT_S: Final = 10.0
"""From the moment when a consumer that came back may say what it holds, until it has said so. A
part of a list that names deliveries begins it anew. [It answers pings and says nothing, and keeps
its partitions.]"""
HELLO_BYTES_MAX: Final = 16 * 1024
"""A WebSocket message before `hello` has named the client; holds a token of 8 KiB."""
HEARTBEAT_S: Final = 20.0
"""Silence after which a ping goes out; below the idle timeout of every proxy."""
HEARTBEAT_TIMEOUT_S: Final = 20.0
"""After an unanswered ping the socket is dead, unless what is on its way to the client moves."""
SLOWEST_BYTES_PER_S: Final = 8 * 1024
"""Rate from which a line is slow, not dead. Deadlines for large data grow by its size at this
rate."""
ANNOUNCED_BYTES: Final = 64 * 1024
"""A larger frame is announced to the client, which may see nothing of it before it is whole."""
MARK_BYTES: Final = 64 * 1024
"""Bytes sent to a client after which a mark is set, which the client answers when all of them have
arrived (push.transit). That takes eight seconds on the slowest line, less than a lease."""
MARK_BYTES_MAX: Final = 256 * 1024
"""The same on a line that is known to carry much."""
TRANSIT_BYTES_MIN: Final = 128 * 1024
TRANSIT_BYTES_MAX: Final = 4 * 1_048_576
"""Most bytes in transit to a client before it is given more: from the first, on a slow line, up to
the second, which is as much as a kernel buffers. At least one push, whatever its size."""
TRANSIT_SLOW_S: Final = 1.0
"""Time to arrive from which a line is slow."""
TRANSIT_STILL_S: Final = 20.0
"""Time without progress after which a transfer is considered stuck. It is as long as a heartbeat,
because a slow line's acknowledgements may come in large steps."""
TRANSIT_LOOK_S: Final = 5.0
"""Interval at which a lease is checked that does not run, because its message is in transit."""
TRANSITS_KEPT_MAX: Final = 64
"""Slow transfers of a session that are remembered, each of a second or longer. The lease of a
message counts from its arrival, if that is among them, otherwise from when it was given."""

# --- Sessions ----------------------------------------------------------------------------------
SESSION_LINGER_S_MAX: Final = 300.0
"""Longest time for which a session whose transport was lost waits for its client to come back."""
SESSIONS_MAX: Final = 50_000
"""WebSockets on one gateway; at 17 KiB each, 830 MiB, and twice that over TLS of our own. One more
is refused, with the advice to come back later."""
BAD_MESSAGES_PER_SESSION_MAX: Final = 16
"""WebSocket messages that cannot be decoded. Each is answered; one more ends the session."""
CLOSE_TIMEOUT_S: Final = 5.0
"""From our close frame to the end of the socket, whatever the other side does."""
SUBSCRIPTIONS_PER_SESSION_MAX: Final = 256
SESSIONS_PER_PAGE_MAX: Final = 1000
"""Sessions described in one answer."""
SUBSCRIPTIONS_PER_PAGE_MAX: Final = 2000
"""Subscriptions described in one answer about several sessions: some ten milliseconds, in which
nothing else has a turn."""
CREDIT_MAX: Final = 10_000
"""Messages that a subscription may be given before it grants more."""
IN_FLIGHT_PER_SUBSCRIPTION_MAX: Final = 4 * CREDIT_MAX
"""Messages that a subscription holds unsettled, in sum. Each is a lease in memory, of less than 1
KiB. [A client grants credit anew for whatever it is given, and never acks.]"""
NAMED_AS_HELD_MAX: Final = 4 * IN_FLIGHT_PER_SUBSCRIPTION_MAX
"""Messages of an epoch before that a client names when it comes back: those that it holds, and
those whose acks may not have been received. Also the ranges that a session may name in lists that
are not complete yet."""
HELD_PARTS_MAX: Final = NAMED_AS_HELD_MAX // 1000
"""Parts of one list that begin HELD_TIMEOUT_S anew: enough to name all that can be named, a
thousand ranges each. [One range every nine seconds: its partitions have no owner for days.]"""
IN_FLIGHT_PULLED_MAX: Final = 4 * CREDIT_MAX
"""Messages of a group that were pulled through one gateway and are unsettled; the next pull waits
for one of them. [A script pulls in a loop and never acks, under a lease of hours.]"""
KEYS_PER_READER_MAX: Final = 1000
WRITE_BUFFER_BYTES_MAX: Final = 64 * 1024
"""Above this a socket gets no more pushes until it drains. 1,000 sockets that stop reading cost at
most 1,000 x (this + two pushes: the one that goes beyond it, and the one that is partly written).
Twice as much made nothing faster."""
PUSH_BYTES_MAX: Final = 64 * 1024
"""A push holds at least one message, and no second one beyond this."""
PUSH_MESSAGES_MAX: Final = 1024
"""Messages in one push, whose ledger is a bit mask of that many bits."""

# --- Publishing --------------------------------------------------------------------------------
IN_FLIGHT_PER_PRODUCER_MAX: Final = 10_000
"""Sequences between `resolved` and the newest, of which storage keeps the exact set (R6)."""
PENDING_MESSAGES_MAX: Final = 50_000
PENDING_BYTES_MAX: Final = 64 * 1_048_576
"""Messages that wait for a commit on one gateway. Above it publishes are refused `overloaded`.
Those to a queue that floods are refused before that (`push.commit_sharing`), so that there is room
for every other one."""
COMMIT_BYTES_SHARED: Final = 128 * 1024
"""Bytes that go with one commit while several queues publish, for each millisecond that the storage
needs for the smallest commit. So the next commit is never far. A queue that is alone waits for
none, and its commits are as large as its load makes them."""
COMMIT_BYTES_SKEWED: Final = 16 * 1024
"""The same if the load is skewed: some sixty messages cost the storage's thread and the loop
about half a millisecond, so that a commit takes half as long again as a small one. The last record
taken may go beyond it. With half of it ten queues that publish alike were taken for heavy ones."""
COMMIT_BYTES_SHARED_MAX: Final = 4 * 1_048_576
COMMIT_MESSAGE_BYTES: Final = 256
"""Least size that a message counts as in such a commit, because it costs time, however small it
is."""
COMMIT_SLOW_S: Final = 5.0
"""Duration from which a commit is slow. New publishes are refused at once until it has ended."""
COMMIT_DEADLINE_S: Final = 30.0
"""Duration after which a commit's messages are answered `unknown`. If it ends after all, they are
pushed all the same."""
RECORD_MESSAGES_MAX: Final = 1024
RECORD_BYTES_MAX: Final = 1_048_576
"""A record closes at the first of the two; a larger single message is a record of its own."""
RECORD_BYTES_SHARED: Final = 32 * 1024
"""The same while several queues publish, because a record goes with one commit."""
PRODUCER_IDLE_S: Final = 3600
"""Time without a sign of a producer after which it is forgotten. Its late retries are refused
(R6)."""
DEDUP_BUCKETS: Final = 4
"""Number of buckets of time in which a dedup window is remembered (R8)."""

# --- Delivery ----------------------------------------------------------------------------------
HELD_PER_PARTITION_MAX: Final = 256
"""Offsets of gated keys held in memory per (group, partition); beyond, side lines (R18)."""
ASIDE_UNWRITTEN_MAX: Final = 1024
"""Offsets on their way to the side lines of a (group, partition), holes in its cursor until then.
Half of them go at a time. [With an eighth of them at once, each key's offsets came to a page of
their own, and a tenth of all bytes written were such pages.]"""
DYING_PER_PARTITION_MAX: Final = 1024
"""Messages of keys that go to the dead letters, while that is being written; beyond, the partition
waits."""
DEAD_RANGES_MAX: Final = 4096
"""Ranges of messages on their way to the dead letters, per group and partition; beyond, the
partition waits until some have arrived. A backlog that expires is one range."""
DEAD_RUN_MIN: Final = 16
"""Number of expired messages in a row from which they go as one range. Fewer go one by one, and
each holds up its own key until that is durable, and no other."""
DEAD_PER_MOVE_MAX: Final = 512
"""Dead letters that one partition of a group puts on their way together."""
LINES_PER_PARTITION_MAX: Final = 100_000
"""Keys that may be gated at once per (group, partition); beyond, the partition waits."""
TAIL_CACHE_BYTES_MAX: Final = 32 * 1_048_576
"""Certified records kept in memory, so that a consumer that keeps up never reads the disk: twenty
thousand of one message each. Bytes here and below are those of `Record.memory_bytes`."""
READ_BYTES_MAX: Final = 1_048_576
"""Bytes of one read from storage; at least one record."""
READS_LIVE_MAX: Final = 64
READS_BEHIND_MAX: Final = 4
"""Reads under way at once: first for consumers that follow the end of a log, then for those far
behind it. A thousand of the latter read a mebibyte each, and no other consumer waits for them."""
BEHIND_MESSAGES: Final = 4096
"""Number of messages before the end of a log from which a consumer is far behind."""
READ_DEADLINE_S: Final = 10.0
"""Longest wait for a read. After it the caller learns that the storage does not answer, and reads
again. A read of the log in order keeps its place until it has ended; others are given up."""
AHEAD_BYTES_MAX: Final = 32 * 1_048_576
"""Bytes read for consumers and not taken by them yet, all together. Beyond it each reads no more
than a push at a time. [A thousand consumers with a backlog stall, each with a whole read in
hand.]"""
LINE_WINDOW_MAX: Final = 256
"""A key that recovers has 1, 2, 4 … messages in flight, up to this, until its line is empty."""
KEY_AHEAD_MAX: Final = 8
"""The same of a slow key: no more than a handful waits at the consumer for the message that is
handled. [A key recovers, its handler hangs, and 255 messages behind it take the credit.]"""
KEY_PATIENCE_S: Final = 0.25
KEY_PATIENCE_S_MAX: Final = 1.0
"""Time in flight from which a message's key may be slow. It is three times what the consumer needs
at best, within these two. [Far away, each settles after 0.3 s.]"""
PARKED_PER_CALL_MAX: Final = 1000
"""Parked keys that one call lists, or decides about."""
LOOK_MESSAGES_MAX: Final = 1000
"""Messages that one look shows an operator, and dead letters that one call sends back."""
LOOK_ANSWER_BYTES_MAX: Final = 1_048_576
"""Bytes of the messages that one look shows; at least one message."""
LOOK_BYTES_MAX: Final = 16 * 1_048_576
"""Bytes read for one look that goes by key or reason; after that it says where to go on. [A peek
for a key that is not there reads a hundred GB, and all others wait for the disk.]"""
COUNT_BYTES_MAX: Final = 4 * 1_048_576
"""Bytes read for the counts of one list of keys that wait; after that they are lower bounds. [A
console asks once a second, and each answer reads the whole backlog.]"""
GROUPS_EXPLAINED_MAX: Final = 100
"""Groups for which one call explains a key; the log is read once for all of them."""
KEYS_PER_LOOK_MAX: Final = 1000
"""Keys that wait, or leases, in one answer."""
SIDE_LOAD_MAX: Final = 16
"""Offsets of a side line read at a time. Many lines may be read at once, and all that is read is
held in memory."""
REASON_CHARS_MAX: Final = 1024
"""Length of a nack's reason, which is stored with each message that the nack returns."""
FINISHED_PUSHES_MAX: Final = 1024
"""Settled pushes whose extent is remembered, so that a repeated ack differs from an invented
one."""
ENDED_RANGES_MAX: Final = 256
"""Ranges of messages that were given and that no ack has settled, per group and partition. Their
acks are stale (R21). Beyond it the lowest become one range with all that lies between them. A
repeated ack of those in between is then called stale as well."""
PULL_MESSAGES_MAX: Final = 1000
PULL_BYTES_MAX: Final = 1_048_576
"""Bytes of one pull's answer, after which no further record is added. The answer is in memory as a
whole, and on a slow line a long time on its way."""
PULL_WAIT_S_MAX: Final = 30.0
POLL_BYTES_MAX: Final = 1_048_576
"""The frames of one answer to a poll; at least one frame."""
PULLS_WAITING_MAX: Final = 10_000
"""Pulls that wait on one gateway. One principal may have up to four times the number that is left
free."""
PULL_IDLE_S: Final = 30.0
"""Time without a pull after which the group's virtual consumer leaves (R24)."""
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
"""Time after the last request for which an inbox and its answers are kept, far longer than any
gateway waits for one. The asking gateway or the owner's may have died."""
LETTER_DEADLINE_S: Final = 5.0
"""Time within which a request to another gateway's owner is answered, if only with `unknown`."""
LETTER_AGAIN_S: Final = 0.5
"""Interval at which the request is repeated meanwhile, because a message between the two may be
lost."""
LETTERS_LOOK_S: Final = 1.0
"""Interval at which an owner of pulled and unsettled messages looks for letters without a
notice."""
LETTERS_UNDER_WAY_MAX: Final = 4096
"""Requests to owners elsewhere that wait for an answer here, and those of others that wait here
until their effect is durable."""
ANSWERS_KNOWN_MAX: Final = 4 * LETTERS_UNDER_WAY_MAX
"""The latest answers that a gateway remembers to have given to such requests, whose inboxes may
show them once more."""
DRAIN_S: Final = 30.0
"""The longest a moving partition waits for its old owner (R20)."""
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
"""Time within which every call to the metadata is answered."""
MEMBERSHIP_DEADLINE_S: Final = 1.0
"""The same for the members of a group. Without an answer the gateway goes on with what it knows."""
METADATA_CALLS_MAX: Final = 256
"""Calls under way within their deadline, of each kind; one more is refused at once."""
METADATA_LATE_MAX: Final = 1024
"""Changes that are finished after their deadline; beyond it none begins."""
METADATA_FRESH_S: Final = 1.0
"""Time for which a name that was looked up is used without another look-up. A change made here
counts at once; one made through another gateway, as soon as the name is looked up again."""
METADATA_STALE_S: Final = 3600.0
"""Time for which a known name counts while the metadata does not answer. Messages meet the storage,
which knows queues by their ids. It takes nothing for a queue that was deleted meanwhile."""
NAMES_UNKNOWN_MAX: Final = 10_000
"""Unknown names that are remembered as such, of queues and of groups."""
BREAKER_FAILURES: Final = 3
"""Number of calls that fail one after another until no more are made."""
BREAKER_OPEN_S: Final = 1.0
"""Seconds for which none is made then; after them one call is a trial."""

# --- Pages and access --------------------------------------------------------------------------
PAGE_FILE_BYTES_MAX: Final = 1_048_576
PAGE_FILES_MAX: Final = 512
PAGES_BYTES_MAX: Final = 8 * 1_048_576
"""The files of the demo and the console, in memory: twenty times what they are."""
TOKENS_MAX: Final = 10_000
"""API tokens and certificates of a broker; each is some 500 bytes in memory."""
TICKETS_MAX: Final = 1000
"""Tickets that wait to be used, each for 30 s: 300 bytes each. Only the holder of a token makes
some. A principal gets no more when as many of its own wait as are free."""
JWT_BYTES_MAX: Final = 8192
JWTS_KEPT_MAX: Final = 10_000
"""JWTs whose verification is remembered; each is some 500 bytes."""
COOKIE_BYTES_MAX: Final = 3072
"""A cookie's value: browsers keep 4096 bytes with its name and attributes (RFC 6265, 6.1)."""
ACCESS_REQUEST_BYTES_MAX: Final = 1024
"""The body of a request for access, which anybody may send; a ticket has 32 characters."""

# --- Usage and audit ---------------------------------------------------------------------------
USAGE_KEYS_MAX: Final = 10_000
"""Tenants, principals and queues with a usage line of their own in a minute: 1 KiB each in memory,
400 bytes each on disk. The use of further ones is summed in one line."""
USAGE_QUEUES_PER_SESSION_MAX: Final = 256
"""Queues whose counter a session keeps at hand, as many as it may subscribe to; for others it is
looked up each time."""
USAGE_LINES_KEPT_MAX: Final = 20_000
"""Usage lines that wait for a disk that is full: two full minutes."""
ACCESS_KEYS_MAX: Final = 1000
"""Sign-ins that were admitted or refused, counted apart in a minute, by principal, credential and
address. Further ones are summed, so that a flood of bad credentials is no flood of lines."""
AUDIT_REFUSED_PER_MINUTE_MAX: Final = 600
"""Refused acts with an audit line of their own; further ones are counted. A client without rights
must not be able to push the acts of others out of the trail."""
AUDIT_ENTRIES_KEPT_MAX: Final = 10_000
"""Audit entries that wait for a disk that is full. Beyond it entries are dropped, and the trail
says how many."""
JOURNAL_FILE_BYTES_MAX: Final = 16 * 1_048_576
"""Size of a file of usage or audit lines after which the next one begins."""
LOG_BYTES_MAX: Final = 1024 * 1_048_576
LOG_AGE_S: Final = 7 * 86_400.0
"""Size and age of the delivery log, if the settings do not say. Its oldest files are deleted
then."""
LOG_FILE_BYTES: Final = 64 * 1_048_576
LOG_FILE_S: Final = 60.0
"""Size and age at which a file of it is finished, and can be read."""
LOG_WAITING_BYTES_MAX: Final = 16 * 1_048_576
"""Bytes of the delivery log in memory that wait for its writer: five seconds of all that a gateway
can do. Further lines are counted and not logged."""
LOG_SPANS_UNWRITTEN_MAX: Final = 10_000
"""Spans of the delivery log that wait for their sockets to be written."""
# --- Rates -------------------------------------------------------------------------------------
DEBTORS_MAX: Final = 100_000
"""Names (principals, addresses, credentials) whose use is remembered while no session is charged to
them: 1 KiB each. Beyond it the names that owe least are forgotten."""
SHARED_BUCKETS_MAX: Final = 100_000
"""Buckets that gateways share and of which one has used more than its standing share: 0.5 KiB each,
in the store. Beyond it the buckets that will be empty soonest are forgotten."""

# --- Storage -----------------------------------------------------------------------------------
FREE_BYTES_RESERVE: Final = 256 * 1_048_576
"""Free space below which publishes are refused while acks and deletes go on (R31)."""
MEMORY_RESERVE_SHARE: Final = 0.1
"""Share of a Redis or Valkey's memory. If less is free, publishes are refused. Acts that drain it
go on, and they take memory, too (R29)."""
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
"""Longest time for which one data key seals. Its loss would cost a day."""
OFFSET_MAX: Final = (1 << 40) - 1
"""Offsets of a partition; a record's row id is partition << 40 | offset. 348 years at 100/s."""

ALERTS_MAX: Final = 16
"""Largest number of alerts that one queue may have."""
METRICS_QUEUES_MAX: Final = 50
METRICS_GROUPS_MAX: Final = 100
"""Queues and groups that have labels of their own in /metrics. Two histograms of 18 buckets are
most of the 5 KB or so that one takes there."""

assert PUSH_BYTES_MAX <= WRITE_BUFFER_BYTES_MAX
assert PUSH_MESSAGES_MAX <= CREDIT_MAX <= IN_FLIGHT_PER_SUBSCRIPTION_MAX
assert PULL_MESSAGES_MAX <= IN_FLIGHT_PULLED_MAX
assert MESSAGE_BYTES_MAX_MAX <= FRAME_BYTES_MAX // 2 + 1
assert MESSAGES_PER_PUBLISH_MAX <= IN_FLIGHT_PER_PRODUCER_MAX <= PENDING_MESSAGES_MAX
