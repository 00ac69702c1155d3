"""Every bound of Tocsin, each with its unit and its reason.

A bound is a promise about memory (P9): whatever a client, a backlog or a flood does, what it can
make this process hold is a sum of the lines below.
"""

from typing import Final

# --- Names and messages ------------------------------------------------------------------------
NAME_BYTES_MAX: Final = 128
"""Queue, group, producer and client names: long enough for a path-like name, short in a log."""
KEY_BYTES_MAX: Final = 1024
"""A key is routed, hashed and compared; what is longer is data and belongs into the body."""
ID_BYTES_MAX: Final = 256
"""A client's message id: a UUID, a ULID or a URL-like identifier fits."""
CONTENT_TYPE_BYTES_MAX: Final = 256
HEADERS_MAX: Final = 64
HEADERS_BYTES_MAX: Final = 8 * 1024
"""Names and values of all headers of a message together."""
MESSAGE_BYTES_MAX_DEFAULT: Final = 262_144
"""A queue's default for `message_bytes_max`."""
MESSAGE_BYTES_MAX_MAX: Final = 1_048_576
"""The largest `message_bytes_max` a queue may ask for: a push is one frame, and a frame of a few
MiB holds up everything behind it on a slow line."""
BODY_DEPTH_MAX: Final = 256
"""Nesting of a JSON body: parsers of consumers give up somewhere above (CPython's at about 1,000).
A body that is shorter than this need not be looked at."""
TTL_S_MAX: Final = 10 * 365 * 86_400

# --- Frames and requests -----------------------------------------------------------------------
MESSAGES_PER_PUBLISH_MAX: Final = 1000
"""Messages in one publish: bounds the work of one event-loop turn."""
FRAME_BYTES_MAX: Final = 2 * 1_048_576
"""A WebSocket message or a request body that a client sends; holds one message of the largest
size in base64 with its headers."""
INCOMPLETE_BYTES_MAX: Final = 64 * 1_048_576
"""Messages and bodies that are not complete yet, of all clients together: 32 of the largest. [A
thousand sockets send all of one but its last byte.]"""
FRAMES_PER_MESSAGE_MAX: Final = 256
"""Frames in one WebSocket message, when a client sends an array of them."""
RANGES_PER_FRAME_MAX: Final = 4096
"""Deliveries and ranges named in one ack, nack or extend."""
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
"""From when a consumer may say what it holds, having come back, until it has; a part of a list that
names deliveries begins it anew. [It answers pings and says nothing, and keeps its partitions.]"""
HELLO_BYTES_MAX: Final = 16 * 1024
"""A WebSocket message before `hello` has said who it is; holds a token of 8 KiB."""
HEARTBEAT_S: Final = 20.0
"""A ping goes out when nothing was heard for so long; below the idle timeout of every proxy."""
HEARTBEAT_TIMEOUT_S: Final = 20.0
"""After an unanswered ping the socket is dead, unless what is on its way to the client moves."""
SLOWEST_BYTES_PER_S: Final = 8 * 1024
"""A line that carries so much is slow, not dead: deadlines for what is large grow by its size at
this rate."""
ANNOUNCED_BYTES: Final = 64 * 1024
"""A larger frame is announced to the client, who may see nothing of it before it is whole."""
MARK_BYTES: Final = 64 * 1024
"""Behind so much that went out to a client stands a mark, which the client answers when all of it
has arrived (push.transit): eight seconds on the slowest line, less than a lease."""
MARK_BYTES_MAX: Final = 256 * 1024
"""The same on a line that is known to carry much."""
TRANSIT_BYTES_MIN: Final = 128 * 1024
TRANSIT_BYTES_MAX: Final = 4 * 1_048_576
"""In transit to a client, before it is given more: from the first, on a slow line, up to the
second, which is as much as a kernel buffers. At least one push, whatever its size."""
TRANSIT_SLOW_S: Final = 1.0
"""What needs so long to arrive is on a slow line."""
TRANSIT_STILL_S: Final = 20.0
"""What has not moved for so long stands still: as long as a heartbeat, because a slow line's
acknowledgements may come in large steps."""
TRANSIT_LOOK_S: Final = 5.0
"""A lease that does not run, because its message is in transit, is looked at so often."""
TRANSITS_KEPT_MAX: Final = 64
"""Slow arrivals that are remembered for the leases of what has arrived: each is at least a second
of the line's time, and what is older counts from when it was given."""

# --- Sessions ----------------------------------------------------------------------------------
SESSION_LINGER_S_MAX: Final = 300.0
"""So long at most a session whose transport was lost waits for its client to come back."""
SESSIONS_MAX: Final = 50_000
"""WebSockets on one gateway; at 17 KiB each, 830 MiB, and twice that over TLS of our own. One more
is told to come back later."""
BAD_MESSAGES_PER_SESSION_MAX: Final = 16
"""WebSocket messages that nobody can decode; each is answered, one more ends the session."""
CLOSE_TIMEOUT_S: Final = 5.0
"""From our close frame to the end of the socket, whatever the other side does."""
SUBSCRIPTIONS_PER_SESSION_MAX: Final = 256
SESSIONS_PER_PAGE_MAX: Final = 1000
"""Sessions described in one answer."""
SUBSCRIPTIONS_PER_PAGE_MAX: Final = 2000
"""Of them all, where they are several: some ten milliseconds, in which nobody else has a turn."""
CREDIT_MAX: Final = 10_000
"""Messages that a subscription may be given before it grants more."""
IN_FLIGHT_PER_SUBSCRIPTION_MAX: Final = 4 * CREDIT_MAX
"""Messages that a subscription holds unsettled, in sum: each is a lease in memory, of less than
1 KiB. [A client grants credit anew for whatever it is given, and never acks.]"""
NAMED_AS_HELD_MAX: Final = 4 * IN_FLIGHT_PER_SUBSCRIPTION_MAX
"""Messages of an epoch before that a client names when it comes back: what it holds, and what it
has acked and was perhaps not heard. And the ranges that a session may name in lists that are not
complete yet."""
HELD_PARTS_MAX: Final = NAMED_AS_HELD_MAX // 1000
"""Parts of one list that begin HELD_TIMEOUT_S anew: as many as name all that can be named, a
thousand ranges each. [One range every nine seconds: its partitions are nobody's for days.]"""
IN_FLIGHT_PULLED_MAX: Final = 4 * CREDIT_MAX
"""Messages of a group that were pulled through one gateway and are unsettled; the next pull waits
for one of them. [A script pulls in a loop and never acks, under a lease of hours.]"""
KEYS_PER_READER_MAX: Final = 1000
WRITE_BUFFER_BYTES_MAX: Final = 64 * 1024
"""Above this a socket gets no more pushes until it drains: 1,000 sockets that stop reading cost
at most 1,000 x (this + two pushes: the one that goes beyond it, and the one that is partly gone).
Twice as much made nothing faster."""
PUSH_BYTES_MAX: Final = 64 * 1024
"""A push holds at least one message, and no second one beyond this."""
PUSH_MESSAGES_MAX: Final = 1024
"""Messages in one push: its ledger is a bit mask of that many bits."""

# --- Publishing --------------------------------------------------------------------------------
IN_FLIGHT_PER_PRODUCER_MAX: Final = 10_000
"""Sequences between `resolved` and the newest: storage keeps their exact set (R6)."""
PENDING_MESSAGES_MAX: Final = 50_000
PENDING_BYTES_MAX: Final = 64 * 1_048_576
"""Messages that wait for a commit on one gateway. Above it publishes are refused `overloaded`, to a
queue that floods before that (`push.commit_sharing`): there is room for every other one."""
COMMIT_BYTES_SHARED: Final = 128 * 1024
"""What goes with one commit as long as several queues publish, so that the next one is never far:
so much for each millisecond that the storage needs for the smallest one. A queue that is alone
waits for nobody, and its commits are as large as its load makes them."""
COMMIT_BYTES_SKEWED: Final = 16 * 1024
"""The same if the load is skewed: some sixty messages cost the storage's thread and the loop
about half a millisecond, so that a commit takes half as long again as a small one. The last record
taken may go beyond it. With half of it ten queues that publish alike were taken for heavy ones."""
COMMIT_BYTES_SHARED_MAX: Final = 4 * 1_048_576
COMMIT_MESSAGE_BYTES: Final = 256
"""What a message counts at least in such a commit: it costs time, however small it is."""
COMMIT_SLOW_S: Final = 5.0
"""A commit that takes so long: new publishes are refused at once until it has ended."""
COMMIT_DEADLINE_S: Final = 30.0
"""Then its messages are answered `unknown`; if it ends after all, they are pushed all the same."""
RECORD_MESSAGES_MAX: Final = 1024
RECORD_BYTES_MAX: Final = 1_048_576
"""A record closes at the first of the two; a larger single message is a record of its own."""
RECORD_BYTES_SHARED: Final = 32 * 1024
"""The same as long as several queues publish: a record goes with one commit."""
PRODUCER_IDLE_S: Final = 3600
"""A producer not heard of for so long is forgotten; its late retries are refused (R6)."""
DEDUP_BUCKETS: Final = 4
"""A dedup window is remembered in so many buckets of time (R8)."""

# --- Delivery ----------------------------------------------------------------------------------
HELD_PER_PARTITION_MAX: Final = 256
"""Offsets of gated keys held in memory per (group, partition); beyond, side lines (R18)."""
ASIDE_UNWRITTEN_MAX: Final = 1024
"""Offsets on their way to the side lines of a (group, partition), holes in its cursor until then;
half of it at a time goes. [Eight times fewer at once: each key's came to a page of the storage for
itself, and a tenth of all bytes written were such pages.]"""
DYING_PER_PARTITION_MAX: Final = 1024
"""Messages of keys of which it is being written down that they go to the dead letters; beyond, the
partition waits."""
DEAD_RANGES_MAX: Final = 4096
"""Ranges of messages on their way to the dead letters, per group and partition; beyond, the
partition waits until some have arrived. A backlog that expires is one range."""
DEAD_RUN_MIN: Final = 16
"""So many expired messages in a row go as one range. Fewer go one by one: each holds up its key
until that is durable, and nobody else's."""
DEAD_PER_MOVE_MAX: Final = 512
"""Dead letters that one partition of a group puts on their way together."""
LINES_PER_PARTITION_MAX: Final = 100_000
"""Keys that may be gated at once per (group, partition); beyond, the partition waits."""
TAIL_CACHE_BYTES_MAX: Final = 32 * 1_048_576
"""Certified records kept in memory so that who keeps up never reads the disk: twenty thousand of
one message each. Bytes here and below are those of `Record.memory_bytes`."""
READ_BYTES_MAX: Final = 1_048_576
"""One read from storage; at least one record."""
READS_LIVE_MAX: Final = 64
READS_BEHIND_MAX: Final = 4
"""Reads under way at once for those who follow the end of a log, and for those far behind it: a
thousand of these read a mebibyte each, and nobody else waits for them."""
BEHIND_MESSAGES: Final = 4096
"""Who has so many messages in front of him is far behind."""
READ_DEADLINE_S: Final = 10.0
"""Who waits for a read longer than this is told that the storage does not answer, and asks again.
Of the log in order, the read keeps its place until it has ended; others are given up."""
AHEAD_BYTES_MAX: Final = 32 * 1_048_576
"""Read for consumers and not taken by them yet, all together; beyond it each reads no more than a
push at a time. [A thousand consumers with a backlog stall, each with a whole read in hand.]"""
LINE_WINDOW_MAX: Final = 256
"""A key that recovers has 1, 2, 4 … messages in flight, up to this, until its line is empty."""
KEY_AHEAD_MAX: Final = 8
"""The same of a key that is slow: no more than a handful waits at the consumer behind the message
that is handled. [A key recovers, its handler hangs, and 255 messages behind it take the credit.]"""
KEY_PATIENCE_S: Final = 0.25
KEY_PATIENCE_S_MAX: Final = 1.0
"""A key may be slow when a message of it has been in flight for so long: three times what the
consumer needs at best, within these two. [Far away, each settles after 0.3 s.]"""
PARKED_PER_CALL_MAX: Final = 1000
"""Parked keys that one call lists, or decides about."""
LOOK_MESSAGES_MAX: Final = 1000
"""Messages that one look shows an operator, and dead letters that one call sends back."""
LOOK_ANSWER_BYTES_MAX: Final = 1_048_576
"""Of the messages that one look shows; at least one."""
LOOK_BYTES_MAX: Final = 16 * 1_048_576
"""Read for one look that goes by key or reason; then it says where to go on. [A peek for a key
that is not there reads a hundred GB, and everybody else waits for the disk.]"""
COUNT_BYTES_MAX: Final = 4 * 1_048_576
"""Read for the counts of one list of keys that wait; then they are lower bounds. [A console asks
once a second, and each answer reads the whole backlog.]"""
GROUPS_EXPLAINED_MAX: Final = 100
"""Groups for which one call explains a key; the log is read once for all of them."""
KEYS_PER_LOOK_MAX: Final = 1000
"""Keys that wait, or leases, in one answer."""
SIDE_LOAD_MAX: Final = 16
"""Offsets of a side line read at a time: many lines may be read at once, and what is read is held
in memory."""
REASON_CHARS_MAX: Final = 1024
"""Of a nack. It is stored with each message that it returns."""
FINISHED_PUSHES_MAX: Final = 1024
"""Settled pushes whose extent is remembered: a repeated ack is told from an invented one."""
ENDED_RANGES_MAX: Final = 256
"""Ranges of messages that were given and that no ack has settled, per group and partition: their
acks are stale (R21). Beyond it the lowest become one range with all that lies between them, and an
ack of that which is repeated is called stale as well."""
PULL_MESSAGES_MAX: Final = 1000
PULL_BYTES_MAX: Final = 1_048_576
"""In one pull's answer, from the next record on: it is in memory as a whole, and on a slow line a
long time on its way."""
PULL_WAIT_S_MAX: Final = 30.0
POLL_BYTES_MAX: Final = 1_048_576
"""The frames of one answer to a poll; at least one frame."""
PULLS_WAITING_MAX: Final = 10_000
"""Of one principal, up to four times what is left free."""
PULL_IDLE_S: Final = 30.0
"""After so long without a pull the group's virtual consumer leaves (R24)."""
INBOX_LETTERS_MAX: Final = 256
INBOX_BYTES_MAX: Final = 256 * 1024
"""Requests that wait in the inbox of a (group, partition): acks, nacks, extends and decisions about
parked keys that reached another gateway than its owner's (R24). One is 80 bytes as a rule and
60 KiB at most; the next one beyond either bound is `overloaded`. [The owner is gone, and its
group's clients send again.]"""
ANSWERS_KEPT_MAX: Final = 4 * INBOX_LETTERS_MAX
"""Answers that lie beside an inbox until who asked has seen them, of one byte for each delivery."""
LETTERS_KEPT_S: Final = 60.0
"""So long after the last request an inbox and its answers are there: far longer than anybody waits
for one. Who asked, or was asked, may have died."""
LETTER_DEADLINE_S: Final = 5.0
"""Whoever asks another gateway's owner is answered within it, if only that nobody knows."""
LETTER_AGAIN_S: Final = 0.5
"""Meanwhile it asks again so often: a message between the two may be lost."""
LETTERS_LOOK_S: Final = 1.0
"""And so often an owner of what was pulled and is unsettled looks without having been told."""
LETTERS_UNDER_WAY_MAX: Final = 4096
"""Requests to owners elsewhere that wait for an answer here, and those of others that wait here for
what they did to be durable."""
ANSWERS_KNOWN_MAX: Final = 4 * LETTERS_UNDER_WAY_MAX
"""The latest answers that a gateway remembers to have given to such requests, whose inboxes may
show them once more."""
DRAIN_S: Final = 30.0
"""The longest a moving partition waits for its old owner (R20)."""
BACKOFF_S_MAX: Final = 3600.0
DELAY_S_MAX: Final = 86_400.0

# --- Queues and groups -------------------------------------------------------------------------
PARTITIONS_MAX: Final = 1024
QUEUES_MAX: Final = 100_000
GROUPS_PER_QUEUE_MAX: Final = 1000
QUEUES_PER_PAGE_MAX: Final = 1000
"""Queues described in one answer: each costs a look into the storage."""

# --- The metadata, as far away as it may be -----------------------------------------------------
METADATA_DEADLINE_S: Final = 5.0
"""Whoever asks the metadata for something is answered within it."""
MEMBERSHIP_DEADLINE_S: Final = 1.0
"""The same for who is in a group: without an answer it goes on with what it knows."""
METADATA_CALLS_MAX: Final = 256
"""Calls under way within their deadline, of each kind; one more is refused at once."""
METADATA_LATE_MAX: Final = 1024
"""Changes that are finished after their deadline; beyond it none begins."""
METADATA_FRESH_S: Final = 1.0
"""So long a name that was looked up is believed without looking again. What is made or changed here
counts at once; what was made through another gateway, as soon as somebody asks for it by name."""
METADATA_STALE_S: Final = 3600.0
"""So long what is known of a name counts while nobody can be asked. Messages meet the storage,
which knows queues by their ids: of one that was deleted meanwhile it takes nothing."""
NAMES_UNKNOWN_MAX: Final = 10_000
"""Unknown names that are remembered as such, of queues and of groups."""
BREAKER_FAILURES: Final = 3
"""Calls that fail one after another until nobody asks any more …"""
BREAKER_OPEN_S: Final = 1.0
"""… for so long; then one tries."""

# --- Pages and access --------------------------------------------------------------------------
PAGE_FILE_BYTES_MAX: Final = 1_048_576
PAGE_FILES_MAX: Final = 512
PAGES_BYTES_MAX: Final = 8 * 1_048_576
"""The files of the demo and the console, in memory: twenty times what they are."""
TOKENS_MAX: Final = 10_000
"""API tokens and certificates of a broker; each is some 500 bytes in memory."""
TICKETS_MAX: Final = 1000
"""Waiting to be used, each for 30 s: 300 bytes each. Only who has a token makes some, and nobody
more than are left for others."""
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
400 bytes each on disk. What belongs to further ones is summed in one line."""
USAGE_QUEUES_PER_SESSION_MAX: Final = 256
"""Queues whose counter a session keeps at hand, as many as it may subscribe to; for others it is
looked up each time."""
USAGE_LINES_KEPT_MAX: Final = 20_000
"""Usage lines that wait for a disk that is full: two full minutes."""
ACCESS_KEYS_MAX: Final = 1000
"""Who was let in, and who was not, counted apart in a minute, by principal, credential and address;
further ones are summed, so that a flood of bad credentials is no flood of lines."""
AUDIT_REFUSED_PER_MINUTE_MAX: Final = 600
"""Refused acts with an audit line of their own; further ones are counted. Who may do nothing must
not be able to push out of the trail what others did."""
AUDIT_ENTRIES_KEPT_MAX: Final = 10_000
"""Audit entries that wait for a disk that is full; of what is dropped beyond, the trail says how
much it was."""
JOURNAL_FILE_BYTES_MAX: Final = 16 * 1_048_576
"""A file of usage or audit lines: the next one begins behind so much."""
LOG_BYTES_MAX: Final = 1024 * 1_048_576
LOG_AGE_S: Final = 7 * 86_400.0
"""The delivery log, where the settings do not say: its oldest files go."""
LOG_FILE_BYTES: Final = 64 * 1_048_576
LOG_FILE_S: Final = 60.0
"""A file of it is finished then, and can be read."""
LOG_WAITING_BYTES_MAX: Final = 16 * 1_048_576
"""Of the delivery log, in memory, for its writer: five seconds of all that a gateway can do. What
comes then is counted and not logged."""
LOG_SPANS_UNWRITTEN_MAX: Final = 10_000
"""Spans of the delivery log that wait for their sockets to be written."""
# --- Rates -------------------------------------------------------------------------------------
DEBTORS_MAX: Final = 100_000
"""Names (principals, addresses, credentials) whose use is remembered while no session is charged to
them: 1 KiB each. Beyond it those are forgotten that owe least."""
SHARED_BUCKETS_MAX: Final = 100_000
"""Buckets that gateways share and of which one has used more than its standing share: 0.5 KiB each,
in the store. Beyond it those are forgotten that are empty soonest."""

# --- Storage -----------------------------------------------------------------------------------
FREE_BYTES_RESERVE: Final = 256 * 1_048_576
"""Below so much free space publishes are refused while acks and deletes go on (R31)."""
MEMORY_RESERVE_SHARE: Final = 0.1
"""Of a Redis or Valkey's memory: when less is free, publishes are refused, while what drains it
goes on, and that takes memory, too (R29)."""
MEMORY_RESERVE_REOPENS: Final = 1.5
"""Publishing opens again when so many times the reserve is free."""
TRIM_BYTES_PER_COMMIT_MAX: Final = 4 * 1_048_576
DATA_KEY_MESSAGES_MAX: Final = 1 << 28
"""Sealed under one data key, which then gets a successor; each record takes one random nonce. NIST
SP 800-38D, 8.3: at most 2^32 of them under a key, which keeps a collision below 2^-32."""
DATA_KEY_BYTES_MAX: Final = 64 * 1024 * 1_048_576
"""2^32 blocks of AES under one key: far below where GCM's bounds are felt."""
DATA_KEY_S_MAX: Final = 86_400.0
"""So long at most one data key seals: what its loss would cost is a day."""
OFFSET_MAX: Final = (1 << 40) - 1
"""Offsets of a partition; a record's row id is partition << 40 | offset. 348 years at 100/s."""

ALERTS_MAX: Final = 16
"""Of a queue."""
METRICS_QUEUES_MAX: Final = 50
METRICS_GROUPS_MAX: Final = 100
"""Queues and groups that have labels of their own in /metrics: two histograms of 18 buckets are
most of what one takes there, some 5 KB."""

assert PUSH_BYTES_MAX <= WRITE_BUFFER_BYTES_MAX
assert PUSH_MESSAGES_MAX <= CREDIT_MAX <= IN_FLIGHT_PER_SUBSCRIPTION_MAX
assert PULL_MESSAGES_MAX <= IN_FLIGHT_PULLED_MAX
assert MESSAGE_BYTES_MAX_MAX <= FRAME_BYTES_MAX // 2 + 1
assert MESSAGES_PER_PUBLISH_MAX <= IN_FLIGHT_PER_PRODUCER_MAX <= PENDING_MESSAGES_MAX
