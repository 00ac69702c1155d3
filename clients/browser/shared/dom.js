/**
 * Small helpers around the DOM. Text goes in as text, never as markup: nothing here or in the
 * pages uses innerHTML, so whatever a message carries is shown and not run.
 */

/**
 * The element with this id.
 * @param {string} id
 * @returns {HTMLElement}
 * @throws {Error} there is none: the page and its script do not belong together
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) {
    throw new Error(`this page has no element ${id}: reload it without its cache`);
  }
  return found;
}

/**
 * A new element. `attributes`: `class`, `text`, `on` (an object of listeners), `data` (an
 * object), and any attribute by its name; null and false leave one out.
 * @param {string} tag
 * @param {Object<string, any>} [attributes]
 * @param {...(Node|string|null)} children strings become text
 * @returns {HTMLElement}
 */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) {
      continue;
    }
    if (name === "text") {
      element.textContent = value;
    } else if (name === "on") {
      for (const [type, listener] of Object.entries(value)) {
        element.addEventListener(type, listener);
      }
    } else if (name === "data") {
      Object.assign(element.dataset, value);
    } else {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/**
 * An element for text from outside: isolated, with the direction of its own first letter.
 * @param {string} [text]
 * @param {Object<string, any>} [attributes]
 */
export function foreign(text = "", attributes = {}) {
  return make("bdi", { dir: "auto", ...attributes, text });
}

/**
 * Sets an element's text, and touches the document only when that is another one.
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  const only = element.firstChild;
  if (only instanceof Text && only.nextSibling === null) {
    if (only.data !== text) {
      only.data = text;
    }
  } else if (element.textContent !== text) {
    element.textContent = text;
  }
}

/**
 * Sets an attribute, or takes it away (null), only when that is another one.
 * @param {Element} element
 * @param {string} name
 * @param {string|null} value
 */
export function setAttribute(element, name, value) {
  if (value === null) {
    if (element.hasAttribute(name)) {
      element.removeAttribute(name);
    }
  } else if (element.getAttribute(name) !== value) {
    element.setAttribute(name, value);
  }
}

/**
 * The colour that a token of style.css has here and now, as `rgb(…)`, for canvases.
 * @param {Element} element where it is asked
 * @param {string} token for example `--accent`
 */
export function resolveColor(element, token) {
  const probe = make("span", { hidden: true });
  probe.style.color = `var(${token})`;
  element.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}

/**
 * Calls `draw` at most once for each frame of the screen, and at most every `everyMs`, however
 * often it is asked for; not while the page is hidden: then once, when it is seen again.
 * @param {(nowMs: number) => void} draw
 * @param {number} [everyMs]
 * @returns {() => void} asks for a drawing
 */
export function drawing(draw, everyMs = 0) {
  let isAsked = false;
  let isQueued = false;
  let lastMs = -Infinity;
  function run(nowMs) {
    isQueued = false;
    isAsked = false;
    lastMs = nowMs;
    draw(nowMs);
  }
  function queue() {
    if (!isAsked || isQueued || document.hidden) {
      return;
    }
    isQueued = true;
    const waitMs = lastMs + everyMs - performance.now();
    if (waitMs > 0) {
      setTimeout(() => requestAnimationFrame(run), waitMs);
    } else {
      requestAnimationFrame(run);
    }
  }
  document.addEventListener("visibilitychange", queue);
  return function ask() {
    isAsked = true;
    queue();
  };
}

/**
 * Says something to screen readers, politely; the same sentence twice is said once.
 * @param {Element} region an element with aria-live
 * @param {string} sentence
 */
export function announce(region, sentence) {
  setText(region, sentence);
}
