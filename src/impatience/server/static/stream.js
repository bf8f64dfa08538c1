// What is asked of the server, and what it answers.

const KEY = "impatience-key";

/** No text was written. `message` is for the reader; `status` is that of the reply, `wait` the seconds it asked for. */
export class WriteError extends Error {
  constructor(message, more = {}) {
    super(message);
    Object.assign(this, more);
  }
}

async function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new WriteError("The server cannot be reached. See whether it is still running, then try again.");
  }
  if (!response.ok) throw await refusal(response, key);
  return response;
}

async function refusal(response, key) {
  const said = await response.json().then((body) => body.error?.message, () => null);
  const { status } = response;
  const wait = status === 429 ? Number(response.headers.get("Retry-After")) || 0 : undefined;
  return new WriteError(said || `The server answered with ${status}.`, { status, wait, key });
}

/** What the server can do, or nothing if it does not say. */
export async function abilities() {
  try {
    const models = await (await ask("/v1/models")).json();
    return { id: models.data[0].id, ...models.data[0].impatience };
  } catch {
    return {};
  }
}

/** Write a text: `onPiece` is given each piece as it comes, the result is returned. Where a key is needed, ask for it. */
export async function write(request, onPiece, signal) {
  const options = {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
    body: JSON.stringify({ ...request, stream: true }),
    signal,
  };
  const before = declined;
  let response;
  while (!response) {
    try {
      response = await ask("/v1/write", options);
    } catch (error) {
      if (error.status !== 401) throw error;
      if (!(await giveKey(error.key, before))) throw new WriteError("Without its key this server writes nothing.");
    }
  }
  let result = null;
  try {
    for await (const { event, data } of events(response.body)) {
      if (event === "piece") onPiece(data);
      if (event === "result") result = data; // the last event; to leave before the stream ends would be to hang up
      if (event === "error") throw new WriteError(data.error.message);
    }
  } catch (error) {
    if (!result) throw error;
  }
  if (!result) throw new WriteError("The connection ended before the text did.");
  return result;
}

/** Read server-sent events. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) {
        const fields = { event: "message", data: "" };
        for (const line of block.split(/\r?\n/)) {
          const [, name, content] = line.match(/^(event|data): ?(.*)$/) ?? [];
          if (name === "event") fields.event = content;
          if (name === "data") fields.data += content;
        }
        if (fields.data) yield { event: fields.event, data: JSON.parse(fields.data) };
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new WriteError("The connection was lost before the text ended.");
  }
}

let asking = null;
let declined = 0;

/**
 * Ask for a key, once for all that need it; tells whether there is a new one. `rejected` was tried and did not do.
 * Texts that were asked for when nobody had `declined` that often yet are declined with the others.
 */
function giveKey(rejected, before) {
  const known = sessionStorage.getItem(KEY);
  if (known && known !== rejected) return Promise.resolve(true);
  if (declined > before) return Promise.resolve(false);
  asking ??= new Promise((resolve) => {
    const dialog = document.querySelector("#key-dialog");
    const field = dialog.querySelector("#key");
    dialog.querySelector("#key-why").textContent = rejected
      ? "That key was not accepted. Try another."
      : "Whoever runs it can give you one. It is kept until you close this tab, and sent nowhere else.";
    field.value = "";
    dialog.returnValue = "";
    dialog.querySelector("#key-cancel").onclick = () => dialog.close();
    dialog.onclose = () => {
      const given = dialog.returnValue === "use" ? field.value.trim() : "";
      field.value = "";
      asking = null;
      if (given) sessionStorage.setItem(KEY, given);
      else declined += 1;
      resolve(Boolean(given));
    };
    dialog.showModal();
  });
  return asking;
}
