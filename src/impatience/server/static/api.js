// Calls the server: reads what its model can do, and writes texts. Asks for the server's key if one is needed.

const KEY = "impatience-key";

/** A request that failed. `message` is for the reader, `status` the HTTP status, `retryAfter` in seconds. */
export class ApiError extends Error {
  constructor(message, details = {}) {
    super(message);
    Object.assign(this, details);
  }
}

async function send(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Check that it is running, then try again.");
  }
  if (!response.ok) throw await readError(response, key);
  return response;
}

async function readError(response, key) {
  const message = await response.json().then((body) => body.error?.message, () => null);
  const { status } = response;
  const retryAfter = status === 429 ? Number(response.headers.get("Retry-After")) || 0 : undefined;
  return new ApiError(message || `The server answered with status ${status}.`, { status, retryAfter, key });
}

/** Returns the model's name, units, tasks, landings, presets and limits; an empty object if they cannot be read. */
export async function readModel() {
  try {
    const models = await (await send("/v1/models")).json();
    return { id: models.data[0].id, ...models.data[0].impatience };
  } catch {
    return {};
  }
}

/** Sends a request; asks for a key if the server needs one. */
async function sendWithKey(path, options) {
  const cancelsBefore = keyCancels;
  for (;;) {
    try {
      return await send(path, options);
    } catch (error) {
      if (error.status !== 401) throw error;
      if (!(await askForKey(error.key, cancelsBefore))) throw new ApiError("This server needs a key.");
    }
  }
}

/** Returns the text of a file that only the server can read, e.g. a PDF. */
export async function readDocument(file) {
  const path = `/v1/documents?name=${encodeURIComponent(file.name)}`;
  const headers = { "Content-Type": "application/octet-stream" };
  return (await (await sendWithKey(path, { method: "POST", headers, body: file })).json()).text;
}

/** Writes a text and returns the result; `onPiece` gets each piece. */
export async function write(request, onPiece, signal) {
  const options = {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
    body: JSON.stringify({ ...request, stream: true }),
    signal,
  };
  const response = await sendWithKey("/v1/write", options);
  let result = null;
  try {
    for await (const { event, data } of readEvents(response.body)) {
      if (event === "piece") onPiece(data);
      if (event === "result") result = data; // read on to the end of the stream: leaving now would abort the request
      if (event === "error") throw new ApiError(data.error.message);
    }
  } catch (error) {
    if (!result) throw error;
  }
  if (!result) throw new ApiError("The connection closed before the text was complete.");
  return result;
}

async function* readEvents(body) {
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
    throw new ApiError("The connection was lost before the text was complete.");
  }
}

let openDialog = null;
let keyCancels = 0;

/**
 * Asks for a key once for all texts that need it, and returns whether there is a new one. `rejectedKey` was not
 * accepted. A text that was requested before the reader cancelled the dialog does not open it again.
 */
function askForKey(rejectedKey, cancelsBefore) {
  const key = sessionStorage.getItem(KEY);
  if (key && key !== rejectedKey) return Promise.resolve(true);
  if (keyCancels > cancelsBefore) return Promise.resolve(false);
  openDialog ??= new Promise((resolve) => {
    const dialog = document.querySelector("#key-dialog");
    const field = dialog.querySelector("#key");
    dialog.querySelector("#key-help").textContent = rejectedKey
      ? "That key was not accepted. Try another."
      : "Ask whoever runs the server for its key. It is kept until you close this tab, and sent to this server only.";
    field.value = "";
    dialog.returnValue = "";
    dialog.querySelector("#key-cancel").onclick = () => dialog.close();
    dialog.onclose = () => {
      const newKey = dialog.returnValue === "use" ? field.value.trim() : "";
      field.value = "";
      openDialog = null;
      if (newKey) sessionStorage.setItem(KEY, newKey);
      else keyCancels += 1;
      resolve(Boolean(newKey));
    };
    dialog.showModal();
  });
  return openDialog;
}
