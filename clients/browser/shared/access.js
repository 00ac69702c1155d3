/**
 * Getting in. A broker without a token lets everybody of its own machine in. One with a token
 * wants it once: as a one-time ticket in the address's fragment, which the broker's own command
 * prints, or typed in here. Either is exchanged for a cookie that scripts cannot read. Nothing is
 * kept in the page.
 */

import { explain } from "./errors.js";
import { make, setText } from "./dom.js";

const TICKET = /^#ticket=([A-Za-z0-9._~-]+)$/;
const HEADER_TOKEN = /^[!-~]+$/;
const TIMEOUT_MS = 10_000;

/**
 * The ticket in the address, if there is one; it is taken out of the address, and of the history,
 * first.
 * @returns {string|null}
 */
export function takeTicket() {
  const found = TICKET.exec(location.hash);
  if (location.hash.startsWith("#ticket=")) {
    history.replaceState(history.state, "", location.pathname);
  }
  return found ? found[1] : null;
}

/**
 * Who this page is to the broker.
 * @returns {Promise<string|null>} the principal's name; null: nobody, it has to sign in
 * @throws {Error} with `code` and `detail` where the broker refuses; TypeError where nothing
 *   answers
 */
export async function whoAmI() {
  const answer = await ask("GET");
  if (answer.status === 401) {
    return null;
  }
  const body = await parsed(answer);
  return String(body.principal ?? "");
}

/**
 * Exchanges a ticket or a token for the cookie.
 * @param {{ticket?: string, token?: string}} credentials
 * @returns {Promise<boolean>} false: they are not valid (any more)
 */
export async function signIn(credentials) {
  const { ticket, token } = credentials;
  if (token !== undefined && !HEADER_TOKEN.test(token)) {
    return false; // no token of any broker: it could not stand in a header
  }
  const answer = await (token === undefined ? ask("POST", { ticket }) : ask("POST", {}, token));
  if (answer.status === 401 || answer.status === 403) {
    return false;
  }
  await parsed(answer);
  return true;
}

/**
 * Resolves when this page may talk to the broker: at once where it may, else after signing in,
 * for which `place` is filled with a form and shown, and `content` hidden.
 * @param {{place: HTMLElement, content: HTMLElement}} elements
 * @returns {Promise<void>}
 * @throws {Error} as `whoAmI`
 */
export async function getIn({ place, content }) {
  const ticket = takeTicket();
  if (ticket && (await signIn({ ticket }))) {
    return;
  }
  if ((await whoAmI()) !== null) {
    return;
  }
  await signInByHand(place, content, ticket !== null);
}

function signInByHand(place, content, isTicketOver) {
  const { form, input, button, said } = makeForm(isTicketOver);
  place.classList.add("gate");
  place.replaceChildren(
    make("h1", { text: "This broker wants a token" }),
    make("p", {
      class: "soft",
      text: "It is the TOCSIN_TOKEN that the broker was started with. Whoever runs it has it.",
    }),
    form,
  );
  content.hidden = true;
  place.hidden = false;
  input.focus();
  return new Promise((resolve) => {
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      button.disabled = true;
      const failure = await failureOf(input.value);
      button.disabled = false;
      if (failure) {
        setText(said, failure);
        input.setAttribute("aria-invalid", "true");
        input.focus();
        return;
      }
      place.hidden = true;
      place.replaceChildren();
      content.hidden = false;
      resolve();
    });
  });
}

function makeForm(isTicketOver) {
  const input = make("input", {
    id: "access-token",
    type: "password",
    autocomplete: "current-password",
    required: true,
    spellcheck: "false",
    "aria-describedby": "access-said",
    data: { testid: "access-token" },
  });
  const button = make("button", {
    class: "button primary",
    type: "submit",
    text: "Sign in",
    data: { testid: "access-submit" },
  });
  const said = make("p", {
    id: "access-said",
    class: "small soft",
    "aria-live": "polite",
    text: isTicketOver
      ? "That ticket is used up, or older than 30 seconds. Get another, or enter the token."
      : "It stays in a cookie that no script can read, and in no address.",
    data: { testid: "access-said" },
  });
  const form = make(
    "form",
    { "aria-label": "Sign in", data: { testid: "access-form" } },
    make("div", { class: "field" }, make("label", { for: input.id, text: "Token" }), input, said),
    make("div", { class: "buttons" }, button),
  );
  return { form, input, button, said };
}

/** Empty: signed in. */
async function failureOf(token) {
  try {
    const isIn = await signIn({ token: token.trim() });
    return isIn ? "" : "That is not this broker's token. Look at its TOCSIN_TOKEN and try again.";
  } catch (error) {
    const { what, remedy } = explain(error);
    return `${what} ${remedy}`;
  }
}

function ask(method, body, token) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  if (token !== undefined) {
    headers.Authorization = `Bearer ${token}`;
  }
  return fetch("/v1/access", {
    method,
    credentials: "same-origin",
    cache: "no-store",
    headers,
    body: body ? JSON.stringify(body) : undefined,
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
}

async function parsed(answer) {
  let body;
  try {
    body = await answer.json();
  } catch {
    body = null;
  }
  if (answer.ok && body !== null && typeof body === "object") {
    return body;
  }
  if (typeof body?.detail !== "string") {
    const detail = `the server answered with ${answer.status} and nothing that a Tocsin says`;
    throw Object.assign(new Error(detail), { code: "not_a_broker", detail, retry: false });
  }
  const { code = "", detail, retry = false } = body;
  throw Object.assign(new Error(detail), { code, detail, retry });
}
