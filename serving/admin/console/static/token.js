// Asks for the token, once, where the server wants one.

import { keepToken, token } from "./api.js";
import { openDialog } from "./dialog.js";
import { h } from "./dom.js";

let isOpen = false;

/** Ask for a token; done() is called with it kept. why: what the server said. */
export function askToken(why, done) {
  if (isOpen) return;
  isOpen = true;
  const hadOne = token() !== null;
  const input = h("input", { type: "password", autocomplete: "off", spellcheck: "false", required: true });
  const dialog = openDialog({
    title: "This server asks for a token", confirm: "Connect", hasReason: false, cancel: "Not now",
    body: h("div", {},
      h("p", {}, hadOne ? `The token was not taken: ${why}.` : "It needs the scope read to look, promote and admin to change things."),
      h("label", { class: "field" }, h("span", {}, "Token"), input),
      h("p", { class: "hint" }, "It is kept for this tab only, until the tab is closed.")),
    submit: async () => {
      const value = input.value.trim();
      if (!value) throw new Error("Token: it is empty.");
      // What is no visible ASCII cannot stand in a header.
      if (!/^[\x21-\x7e]+$/.test(value)) throw new Error("Token: only visible characters without spaces.");
      keepToken(value);
      done();
    },
  });
  dialog.node.addEventListener("close", () => {
    isOpen = false;
  });
  input.focus();
}
