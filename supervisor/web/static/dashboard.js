// Times in the reader's zone, a page that keeps itself up to date, keys, and the cursor in the curves.
// Everything works without it, too.
"use strict";

const REFRESH_MS = 5000;
const byId = (id) => document.getElementById(id);

// -- light or dark -------------------------------------------------------------------------------------------

const root = document.documentElement;
const wanted = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
const setTheme = (theme) => { if (theme === "light" || theme === "dark") root.dataset.theme = theme; };
setTheme(wanted());
const toggleTheme = () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  setTheme(dark ? "light" : "dark");
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* it holds until the page is closed */ }
};

// -- times ---------------------------------------------------------------------------------------------------

const sameDay = (a, b) => a.toDateString() === b.toDateString();
const clock = (at, seconds) => at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...(seconds ? { second: "2-digit" } : {}), hour12: false });
const short = (at) => (sameDay(at, new Date()) ? "" : at.toLocaleDateString([], { month: "short", day: "numeric" }) + " ") + clock(at, true);
const showTimes = (within) => {
  for (const each of within.querySelectorAll("time[datetime]")) {
    const at = new Date(each.dateTime);
    each.title = at.toLocaleString();
    if (each.dataset.format === "clock") each.textContent = clock(at, true);
    else if (each.dataset.format === "short") each.textContent = short(at);
    else each.textContent = at.toLocaleString();
  }
  const axis = [...within.querySelectorAll("text[data-at]")];
  const times = axis.map((each) => Number(each.dataset.at) * 1000);
  const step = times.length > 1 ? times[1] - times[0] : 0;
  axis.forEach((each, n) => {
    const at = new Date(times[n]);
    const day = at.toLocaleDateString([], { month: "short", day: "numeric" });
    each.textContent = step >= 86400000 ? day : clock(at, step > 0 && step < 60000);
  });
  for (const each of within.querySelectorAll("rect[data-at]")) {
    const title = each.querySelector("title");
    if (title && !each.dataset.dated) { title.textContent = clock(new Date(Number(each.dataset.at) * 1000)) + ": " + title.textContent; each.dataset.dated = "1"; }
  }
};

// -- filter and rows -----------------------------------------------------------------------------------------

const filter = () => {
  const box = byId("filter"), rows = byId("rows");
  if (!box || !rows) return;
  const text = box.value.trim().toLowerCase();
  for (const row of rows.querySelectorAll("[data-text]")) row.hidden = !row.dataset.text.toLowerCase().includes(text);
};
const moveRow = (by) => {
  const links = [...document.querySelectorAll("#rows a.row")].filter((each) => !each.closest("[hidden]"));
  if (!links.length) return false;
  const at = links.indexOf(document.activeElement);
  links[Math.min(Math.max(at + by, 0), links.length - 1)].focus();
  return true;
};

// -- the cursor in the curves --------------------------------------------------------------------------------

let cursorAt = null;
const showCursor = (plots, share) => {
  const gutter = plots.querySelector(".canvas, .track");
  if (!gutter) return;
  const box = plots.getBoundingClientRect(), track = gutter.getBoundingClientRect();
  let line = plots.querySelector(".cursor");
  const readout = plots.querySelector(".readout");
  if (!line) { line = document.createElement("div"); line.className = "cursor"; plots.append(line); }
  cursorAt = Math.min(Math.max(share, 0), 100);
  const x = track.left - box.left + (track.width * cursorAt) / 100;
  line.style.left = `${x}px`;
  const begin = Number(plots.dataset.begin), end = Number(plots.dataset.end);
  const lines = [short(new Date((begin + ((end - begin) * cursorAt) / 100) * 1000))];
  for (const canvas of plots.querySelectorAll(".canvas")) {
    let best = null;
    for (const [left, value] of JSON.parse(canvas.dataset.points)) if (left <= cursorAt + 0.4) best = value;
    if (best !== null) lines.push(`${canvas.dataset.name} ${best}`);
  }
  readout.textContent = lines.join("\n");
  readout.hidden = false;
  readout.style.left = cursorAt > 60 ? "" : `${x + 10}px`;
  readout.style.right = cursorAt > 60 ? `${box.width - x + 10}px` : "";
};
const hideCursor = (plots) => {
  cursorAt = null;
  plots.querySelector(".cursor")?.remove();
  plots.querySelector(".readout").hidden = true;
};
const followPointer = (event) => {
  const plots = event.target.closest?.(".plots");
  if (!plots) return;
  const track = plots.querySelector(".canvas, .track")?.getBoundingClientRect();
  if (!track || event.clientX < track.left) hideCursor(plots);
  else showCursor(plots, (100 * (event.clientX - track.left)) / track.width);
};
document.addEventListener("pointermove", followPointer);
document.addEventListener("pointerout", (event) => {
  const plots = event.target.closest?.(".plots");
  if (plots && !plots.contains(event.relatedTarget)) hideCursor(plots);
});

// -- up to date ----------------------------------------------------------------------------------------------

const scrolls = () => [...document.querySelectorAll(".scroll, .log")].map((each) => [each.scrollTop, each.scrollTop + each.clientHeight >= each.scrollHeight - 4]);
const keepScrolls = (before) => {
  [...document.querySelectorAll(".scroll, .log")].forEach((each, n) => {
    const [top, atEnd] = before[n] ?? [0, each.classList.contains("log")];
    each.scrollTop = atEnd && each.classList.contains("log") ? each.scrollHeight : top;
  });
};
const place = (element) => {
  // Where the focus is, so that it is there again after the content was replaced.
  if (!element || !byId("main").contains(element)) return null;
  if (element.id) return `#${CSS.escape(element.id)}`;
  const link = element.getAttribute("href");
  return link ? `a[href="${CSS.escape(link)}"]` : element.classList.contains("plots") ? ".plots" : null;
};
let busy = false;
const refresh = async () => {
  if (busy || document.hidden || document.querySelector("dialog[open]") || !getSelection().isCollapsed) return;
  if (["INPUT", "SELECT"].includes(document.activeElement?.tagName)) return;
  busy = true;
  const live = byId("live");
  live.classList.add("fetching");
  try {
    const reply = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "error" });
    if (!reply.ok && reply.status !== 404) throw new Error(String(reply.status));
    const page = new DOMParser().parseFromString(await reply.text(), "text/html");
    const focus = place(document.activeElement), before = scrolls(), cursor = cursorAt, text = byId("filter")?.value;
    for (const part of ["main", "footer"]) document.querySelector(part).replaceChildren(...page.querySelector(part).childNodes);
    begin(before);
    if (text && byId("filter")) { byId("filter").value = text; filter(); }
    if (focus) document.querySelector(focus)?.focus({ preventScroll: true });
    if (cursor !== null && document.querySelector(".plots")) showCursor(document.querySelector(".plots"), cursor);
    live.querySelector(".dot").className = "dot good";
    if (live.querySelector(".live-text").textContent !== "live") live.querySelector(".live-text").textContent = "live";
    live.title = "This page is up to date";
  } catch {
    live.querySelector(".dot").className = "dot bad";
    live.querySelector(".live-text").textContent = "no answer";
    live.title = "The daemon does not answer; this page is old";
  } finally {
    busy = false;
    setTimeout(() => live.classList.remove("fetching"), 800);
  }
};
const begin = (before) => {
  showTimes(document);
  keepScrolls(before ?? []);
  byId("filter")?.addEventListener("input", filter);
  byId("node")?.addEventListener("change", (event) => event.target.form.requestSubmit());
};

// -- keys ----------------------------------------------------------------------------------------------------

let going = false;
const KEYS = { "/": () => byId("filter")?.focus(), "?": () => byId("keys").showModal(), t: toggleTheme, j: () => moveRow(1), k: () => moveRow(-1) };
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
  if (event.key === "Escape" && typing) { event.target.value = ""; filter(); event.target.blur(); return; }
  if (event.key === "ArrowDown" && event.target.id === "filter") { event.preventDefault(); moveRow(1); return; }
  if (typing) return;
  const plots = event.target.closest?.(".plots");
  if (plots && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
    event.preventDefault();
    showCursor(plots, (cursorAt ?? 100) + (event.key === "ArrowLeft" ? -1 : 1));
    return;
  }
  if (event.target.matches?.("a.row") && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    event.preventDefault();
    moveRow(event.key === "ArrowDown" ? 1 : -1);
    return;
  }
  if (going) {
    going = false;
    const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
    if (link) { link.click(); return; }
  }
  if (event.key === "g") { going = true; setTimeout(() => { going = false; }, 1200); return; }
  const action = KEYS[event.key];
  if (action) { event.preventDefault(); action(); }
});
document.addEventListener("DOMContentLoaded", () => {
  begin();
  byId("theme").addEventListener("click", toggleTheme);
  byId("help").addEventListener("click", () => byId("keys").showModal());
  setInterval(refresh, REFRESH_MS);
});
