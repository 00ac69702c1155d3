/**
 * Client of the Tocsin message broker: publish, and be pushed to, in order and without loss.
 *
 *     import { connect } from "tocsin";
 *
 *     const client = await connect("http://127.0.0.1:8080");
 *     await client.createQueue("orders");
 *     await client.publish("orders", { total: 12 }, { key: "user-7" });
 *     for await (const message of client.subscribe("orders", "billing")) {
 *       console.log(message.body);
 *       await message.ack();
 *     }
 *
 * @module
 */

export { Client, connect } from "./api/client.js";
export { DeadLetter, PeekedMessage, PulledMessage, ScheduledMessage } from "./api/calls.js";
export {
  BrokerError, Busy, CannotConnect, ClientClosed, Conflict, Gap, GroupNotFound, InvalidRequest,
  NotABroker, NotFound, NoToken, OutcomeUnknown, PositionUnknown, PublishManyFailed,
  PublishTimeout, QueueNotFound, SessionEnded, SettingsDiffer, StaleDelivery, TocsinError, TooLarge,
  Unauthorized, WouldDelete,
} from "./proto/errors.js";
export { Message, ReadMessage } from "./proto/message.js";
export { Reader } from "./api/reader.js";
export { Subscription } from "./api/subscription.js";

export const VERSION = "0.1.0";
