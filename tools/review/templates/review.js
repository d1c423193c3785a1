"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const one = (selector) => document.querySelector(selector);
  const search = one("#search");
  const shown = one("#shown");
  const filters = all("[data-filter]");
  const patches = all(".patch");
  const leaves = all(".leaf");
  const texts = new Map();
  root.classList.add("js");

  // A patch's own words are those outside of its sites.
  for (const leaf of leaves) texts.set(leaf, `${leaf.textContent} ${leaf.dataset.words || ""}`.toLowerCase());
  for (const patch of patches) {
    const own = [...patch.childNodes].filter((n) => !(n.classList && n.classList.contains("leaf")));
    texts.set(patch, own.map((n) => n.textContent).join(" ").toLowerCase());
  }

  const chosen = () => new Set(
    filters.filter((b) => b.getAttribute("aria-pressed") === "true").map((b) => b.dataset.filter));

  function refresh() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = chosen();
    const has = (text) => words.every((word) => text.includes(word));
    const kept = (node) =>
      !wanted.size || node.dataset.verdict.split(" ").some((verdict) => wanted.has(verdict));
    for (const leaf of leaves) {
      const patch = leaf.closest(".patch");
      const named = has(texts.get(leaf)) || (patch !== null && has(texts.get(patch)));
      leaf.hidden = !(kept(leaf) && named);
    }
    for (const patch of patches) {
      const inside = all(".leaf", patch).some((leaf) => !leaf.hidden);
      patch.hidden = !(kept(patch) && (inside || has(texts.get(patch))));
    }
    for (const rule of all(".rule")) {
      rule.hidden = all(".leaf", rule).every((leaf) => leaf.hidden);
      if ((words.length || wanted.size) && !rule.hidden) rule.open = true;
    }
    const items = [...patches, ...leaves];
    const left = items.filter((item) => !item.hidden).length;
    shown.textContent = left === items.length
      ? `${items.length} patches, sites and refusals`
      : `${left} of ${items.length} shown`;
  }

  function toggleFilter(button) {
    const pressed = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!pressed));
    refresh();
  }

  function clear() {
    search.value = "";
    for (const button of filters) button.setAttribute("aria-pressed", "false");
    refresh();
  }

  // Storage may be refused to a page from a file.
  function remembered(key) {
    try { return localStorage.getItem(key); } catch { return null; }
  }
  function remember(key, value) {
    try { localStorage.setItem(key, value); } catch { /* only for this time, then */ }
  }

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const wide = matchMedia("(min-width: 70rem)");
  const isSplit = () => (root.dataset.view ? root.dataset.view === "split" : wide.matches);
  function label() {
    one("#theme").textContent = isDark() ? "Light" : "Dark";
    one("#view").textContent = isSplit() ? "Unified diffs" : "Side by side";
  }
  function turnTheme() {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember("normport-theme", root.dataset.theme);
    label();
  }
  function turnView() {
    root.dataset.view = isSplit() ? "unified" : "split";
    label();
  }

  async function copy(button) {
    const text = button.parentElement.querySelector("code").textContent;
    let done = false;
    try {
      await navigator.clipboard.writeText(text);
      done = true;
    } catch {
      getSelection().selectAllChildren(button.parentElement.querySelector("code"));
      done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Selected";
    shown.textContent = done ? "Copied" : "Selected: copy it with your keyboard";
    setTimeout(() => { button.textContent = "Copy"; refresh(); }, 1500);
  }

  const visible = () => all(".item").filter((item) => item.checkVisibility());
  const target = (item) => (item.matches("details") ? item.querySelector("summary") : item);
  function current() {
    const focused = document.activeElement;
    return focused ? focused.closest(".item") : null;
  }
  function move(step) {
    const items = visible();
    const at = items.indexOf(current());
    const next = at < 0 ? items[step > 0 ? 0 : items.length - 1] : items[at + step];
    if (!next) return;
    target(next).focus({ preventScroll: true });
    target(next).scrollIntoView({ block: "center" });
  }
  function turnItem() {
    const item = current();
    if (!item) return;
    const parts = item.matches("details") ? [item] : all("details", item);
    const open = parts.some((part) => !part.open);
    for (const part of parts) part.open = open;
  }
  function turnAll() {
    const parts = all("main details");
    const open = parts.some((part) => !part.open);
    for (const part of parts) part.open = open;
  }

  const keys = {
    "/": () => search.focus(),
    j: () => move(1),
    k: () => move(-1),
    o: turnItem,
    x: turnAll,
    u: turnView,
    t: turnTheme,
    c: () => {
      const item = current() || one("header.top");
      const button = (item.closest(".patch") || item.closest(".rule") || item)
        .querySelector("[data-copy]");
      if (button) copy(button);
    },
    "?": () => one("#help").showModal(),
    Escape: clear,
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || one("#help").open) return;
    const typing = event.target.matches("input, textarea, select");
    if (typing && event.key === "Escape") search.blur();
    if ((typing && event.key !== "Escape") || !Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    keys[event.key]();
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.filter) toggleFilter(button);
    else if ("copy" in button.dataset) copy(button);
    else if (button.id === "view") turnView();
    else if (button.id === "theme") turnTheme();
    else if (button.id === "keys") one("#help").showModal();
  });
  search.addEventListener("input", refresh);
  search.form.addEventListener("submit", (event) => event.preventDefault());

  function reveal() {
    const wanted = location.hash && document.getElementById(location.hash.slice(1));
    for (let node = wanted; node; node = node.parentElement) {
      if (node.matches("details")) node.open = true;
    }
  }
  addEventListener("hashchange", reveal);

  // Paper shows everything; afterwards the page is as it was.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = all("main details:not([open])");
    for (const part of closed) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const part of closed) part.open = false;
  });

  dark.addEventListener("change", label);
  wide.addEventListener("change", label);
  const theme = remembered("normport-theme");
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  label();
  refresh();
  reveal();
})();
