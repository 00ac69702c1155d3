/** Two small drawings on canvases: a line of values, and when a key's messages were handled. */

const WINDOW_MS = 20_000;
const TICK_PX = 2;

/** The canvas at the size that it has on the screen, cleared; null where it is not shown. */
function ready(canvas) {
  const ratio = globalThis.devicePixelRatio || 1;
  const width = Math.round(canvas.clientWidth * ratio);
  const height = Math.round(canvas.clientHeight * ratio);
  if (!width || !height) {
    return null;
  }
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  return { context, width: canvas.clientWidth, height: canvas.clientHeight };
}

/**
 * A line of values, from 0 or the lowest one to the highest.
 * @param {HTMLCanvasElement} canvas
 * @param {import("./ring.js").Ring} values
 * @param {string} color
 */
export function drawLine(canvas, values, color) {
  const place = ready(canvas);
  if (!place || values.length < 2) {
    return;
  }
  const { context, width, height } = place;
  let low = 0;
  let high = 0;
  for (let i = 0; i < values.length; i += 1) {
    low = Math.min(low, values.at(i));
    high = Math.max(high, values.at(i));
  }
  const scale = high > low ? (height - 4) / (high - low) : 0;
  const step = width / (values.values.length - 1);
  const first = values.values.length - values.length;
  context.beginPath();
  for (let i = 0; i < values.length; i += 1) {
    const y = height - 2 - (values.at(i) - low) * scale;
    context[i ? "lineTo" : "moveTo"]((first + i) * step, y);
  }
  context.strokeStyle = color;
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  context.stroke();
}

/**
 * The last 20 seconds of a lane, now at the right: a tick for each message that was handled, and
 * a bar from when its key was held.
 * @param {HTMLCanvasElement} canvas
 * @param {{handledMs: import("./ring.js").Ring, handledHues: import("./ring.js").Ring,
 *   heldSinceMs: number|null, nowMs: number}} lane
 * @param {{ticks: string[], none: string, held: string, ground: string}} colors `ticks` by hue
 */
export function drawLane(canvas, { handledMs, handledHues, heldSinceMs, nowMs }, colors) {
  const place = ready(canvas);
  if (!place) {
    return;
  }
  const { context, width, height } = place;
  const toX = (ms) => width - ((nowMs - ms) / WINDOW_MS) * width;
  context.fillStyle = colors.ground;
  context.fillRect(0, height / 2 - 0.5, width, 1);
  for (let i = handledMs.length - 1; i >= 0; i -= 1) {
    const x = toX(handledMs.at(i));
    if (x < 0) {
      break;
    }
    context.fillStyle = colors.ticks[handledHues.at(i)] ?? colors.none;
    context.fillRect(x - TICK_PX, 4, TICK_PX, height - 8);
  }
  if (heldSinceMs !== null) {
    const x = Math.max(0, toX(heldSinceMs));
    context.fillStyle = colors.held;
    context.fillRect(x, height / 2 - 3, width - x, 6);
  }
}
