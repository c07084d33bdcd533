// Calls of the admin plane: JSON there and back, the token in a header, errors in the server's words.

const KEY = "ramrack-token";
let inMemory = null;
let onUnauthorized = () => {};

/** Say what to do when the server wants a token, or another one. */
export function whenUnauthorized(listener) {
  onUnauthorized = listener;
}

export function token() {
  try {
    return sessionStorage.getItem(KEY) ?? inMemory;
  } catch {
    return inMemory;
  }
}

/** Keep the token for this tab only; null forgets it. */
export function keepToken(value) {
  inMemory = value;
  try {
    if (value === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, value);
  } catch {
    // Storage may be forbidden: then the token lasts as long as the page.
  }
}

export function authorization() {
  const value = token();
  return value ? { authorization: `Bearer ${value}` } : {};
}

/** What the server, or the way to it, refused. status: 0 where no answer came. */
export class ApiError extends Error {
  constructor(message, status, details = {}) {
    super(message);
    this.status = status;
    this.details = details;
  }
}

/** Return the error that a bad answer carries. */
export async function errorOf(answer) {
  let details = {};
  try {
    details = await answer.json();
  } catch {
    // A proxy in between may answer with something else.
  }
  return new ApiError(details.error ?? `the server answered ${answer.status}`, answer.status, details);
}

/** Call the admin plane; query: what is undefined or empty is left out. Raises ApiError. */
export async function call(method, path, { body, query = {}, etag } = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const url = path + (given.length ? `?${new URLSearchParams(given)}` : "");
  const headers = authorization();
  if (body !== undefined) headers["content-type"] = "application/json";
  if (etag) headers["if-match"] = etag;
  let answer;
  try {
    answer = await fetch(url, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store",
    });
  } catch {
    throw new ApiError("The server does not answer. Whether the change was made, the events will say.", 0);
  }
  if (!answer.ok) {
    const error = await errorOf(answer);
    if (answer.status === 401) onUnauthorized(error.message);
    throw error;
  }
  return answer.json();
}

export const modelPath = (model) => `/admin/v1/models/${encodeURIComponent(model)}`;
export const versionPath = (model, version) => `${modelPath(model)}/versions/${version}`;
