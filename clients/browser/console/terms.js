// @ts-check
/** What the words of the console mean: the one place where that stands. Pure. */

/** @type {Record<string, string>} */
const MEANINGS = {
  "Depth": "Messages that stand in the queue: not settled by all of its groups, or kept for as "
    + "long as its retention says. A queue without a retention is empty when all is done.",
  "Retained": "The queue has a retention: its messages stay for so long, done or not. Their "
    + "number is no backlog; the lag of its groups is.",
  "Scheduled": "Messages that are stored and wait until they are due. Then they come into the "
    + "queue, and count in its depth; before, no group or reader knows of them.",
  "Lag": "Messages that a group has not settled yet: in flight, waiting, or not given out. It is "
    + "what is left to do.",
  "Size": "What the messages that stand there take.",
  "Published": "Messages that producers put into the queue.",
  "Given": "Messages handed to consumers; one that is tried again counts again.",
  "Settled": "Messages that a group is done with, because a consumer acknowledged them.",
  "Nacked": "Messages that a consumer gave back as failed. They are tried again.",
  "In flight": "A consumer is at work on them: given out, and not settled yet.",
  "Held aside": "Messages that wait on disk behind an earlier one of their key that failed.",
  "Parked keys": "Keys of which a message failed its last attempt. The key waits, in order, until "
    + "somebody decides; other keys go on.",
  "Redelivered": "Messages given out more than once, because they failed or their lease ended.",
  "Dead-lettered": "Messages that were given up and moved to the dead-letter queue.",
  "Consumers": "Those who take part in the group now. It spreads its partitions over them.",
  "Oldest unsettled": "How long ago the oldest message was published that the group has still to "
    + "settle.",
  "Waits for": "What keeps a partition or key from being given out. Its word says more when it is "
    + "pointed at, and Explain has a sentence.",
  "Keys held": "Keys of which messages wait behind one that failed.",
  "Lease ends": "Until then the consumer has to settle the message, or ask for more time; "
    + "otherwise it is given to somebody again.",
  "Failed": "How often the first message that waits has failed.",
  "Waiting": "How many messages of the key wait, the first one and all behind it.",
  "Epoch": "Grows by one each time the partition gets another owner. What an earlier owner still "
    + "says does not count.",
  "Offset": "The place of a message in its partition; the first one ever is 0.",
  "Certified up to": "Messages below this offset are safe as the queue's durability asks, and may "
    + "be given out.",
  "Generation": "Which log of the partition this is; it changes when a backup is restored.",
  "Cluster": "The storage cluster, a Redis or Valkey with its replicas, that has the messages of a "
    + "partition. Empty: the broker has one storage.",
  "Zone": "Where the cluster stands: what is in one zone may be lost together.",
  "Hot": "Clusters with so little memory left that no partition of a new queue is placed there.",
  "Away": "Clusters that do not answer. What is there waits; what is at others goes on.",
  "Memory taken": "In the fullest of the cluster's primaries, of what it may take.",
  "Catalog": "The cluster that knows what queues and groups there are.",
  "Lingering": "The session has no connection at the moment. Its consumer keeps what it holds, and "
    + "is waited for until the time that is shown.",
  "Heard": "How long ago its client was heard of last.",
  "Granted": "How many messages the client said it takes at a time.",
  "Credit open": "How many of those it may still be given now; 0: it is busy with all of them.",
  "Unsent": "Bytes that wait because the client reads more slowly than it is sent to.",
  "Expires": "When the message's time to live is over. What has expired is not handled: it goes "
    + "to the dead letters.",
};

/** Other labels of the same things. @type {Record<string, string>} */
const SAME = {
  "Retained messages": "Retained",
  "Largest lag": "Lag",
  "Lag, all groups": "Lag",
  "Published/s": "Published",
  "Given/s": "Given",
  "Settled/s": "Settled",
  "Published since start": "Published",
  "Redelivered since start": "Redelivered",
  "Dead-lettered since start": "Dead-lettered",
  "Parked": "Parked keys",
  "Why": "Waits for",
  "First offset": "Offset",
  "Next offset": "Offset",
  "First message's offset": "Offset",
};

/** The word that a label stands for; empty: it needs none. @param {string} label */
export function wordOf(label) {
  const word = Object.hasOwn(SAME, label) ? SAME[label] : label;
  return Object.hasOwn(MEANINGS, word) ? word : "";
}

/** What a label means; empty: it says so itself. @param {string} label */
export function meaningOf(label) {
  const word = wordOf(label);
  return word ? MEANINGS[word] : "";
}

/**
 * The words of these labels and what they mean, each word once, in their order.
 * @param {string[]} labels
 * @returns {[string, string][]}
 */
export function wordsOf(labels) {
  const words = [...new Set(labels.map(wordOf).filter(Boolean))];
  return words.map((word) => [word, MEANINGS[word]]);
}
