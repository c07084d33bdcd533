// The live stream: server-sent events over fetch, because EventSource cannot send a token.

import { ApiError, authorization, errorOf } from "./api.js";

const SILENT_MS = 10_000;
const LONGEST_WAIT_MS = 10_000;
const HIDDEN_MS = 30_000;

/** Split what came into events; return [events, rest]. */
export function parse(buffer) {
  const blocks = buffer.split("\n\n");
  const rest = blocks.pop();
  const events = blocks.map((block) => {
    const event = { kind: "message", data: "" };
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) event.kind = line.slice(7);
      else if (line.startsWith("data: ")) event.data += line.slice(6);
    }
    return event;
  });
  return [events, rest];
}

/**
 * Read the stream for ever, connecting again when it breaks off. Nothing is read while nobody sees
 * the page. on: event(kind, document), state(name, detail), refused(ApiError).
 */
export class Stream {
  constructor(on) {
    this.on = on;
    this.attempt = 0;
    this.timer = 0;
    this.abort = null;
    document.addEventListener("visibilitychange", () => this.look());
  }

  /** Connect now, with the token that is kept now. */
  start() {
    this.stop();
    this.attempt = 0;
    this.read();
  }

  stop() {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = null;
  }

  look() {
    clearTimeout(this.hidden);
    if (document.hidden) {
      this.hidden = setTimeout(() => {
        this.stop();
        this.isPaused = true;
      }, HIDDEN_MS);
    } else if (this.isPaused) {
      this.isPaused = false;
      this.start();
    }
  }

  async read() {
    const abort = (this.abort = new AbortController());
    let silence = 0;
    const alive = () => {
      clearTimeout(silence);
      silence = setTimeout(() => abort.abort("silent"), SILENT_MS);
    };
    this.on.state("connecting");
    try {
      alive();
      const answer = await fetch("/admin/v1/console/stream", {
        headers: authorization(), signal: abort.signal, cache: "no-store",
      });
      if (!answer.ok) throw await errorOf(answer);
      await this.events(answer, alive);
    } catch (error) {
      if (abort !== this.abort) return;
      if (error instanceof ApiError && (error.status === 401 || error.status === 403)) {
        this.on.state("refused");
        this.on.refused(error);
        return;
      }
      this.again(error instanceof ApiError ? error.message : "");
      return;
    } finally {
      clearTimeout(silence);
    }
    if (abort === this.abort) this.again("");
  }

  async events(answer, alive) {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let buffer = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      alive();
      this.attempt = 0;
      const [events, rest] = parse(buffer + value);
      buffer = rest;
      for (const event of events) this.on.event(event.kind, JSON.parse(event.data));
      this.on.state("live");
    }
  }

  again(why) {
    const wait = Math.min(LONGEST_WAIT_MS, 500 * 2 ** this.attempt);
    this.attempt += 1;
    this.on.state("lost", why);
    this.timer = setTimeout(() => this.read(), wait);
  }
}
