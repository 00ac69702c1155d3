"""The delivery log: every message that was certified, given out, settled, and what it waited for.

    PublishOrigin       messages that a session published, until their    ┐
                        commit ends                                       ├▶ DeliveryLog ▶ LogWriter
    LoggedPlace         messages that a consumer received and settled     │  lines, chunks  a thread
    ReadsLog            messages that many readers received at once       ┘

One line describes the effect of one frame, never that of one message, so that it costs a few
microseconds for a hundred messages. Nothing waits for the log. Lines that a full disk or a full
queue does not take are dropped and counted. docs/operations/delivery-log.md describes the lines and
the files.
"""
