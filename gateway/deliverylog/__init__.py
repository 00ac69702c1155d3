"""The delivery log: every message that was certified, given out, settled, and what it waited for.

    PublishOrigin       what a session published, until its commit ends   ┐
    LoggedPlace         what a consumer was given and has settled         ├▶ DeliveryLog ▶ LogWriter
    ReadsLog            what a fan-out gave to many readers at once       ┘  lines, chunks  a thread

One line says what one frame did, never what one message did, so that it costs a few microseconds
for a hundred messages. Nobody waits for it: what a full disk or a full queue does not take is
dropped and counted. docs/operations/delivery-log.md describes the lines and the files.
"""
